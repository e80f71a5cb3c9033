"""How long requests to a bucket are tried again, and what is said when they are not any more."""

from __future__ import annotations

import os
import re
import time

from flor.errors import BucketError

PAUSE_SECONDS = (0.2, 4.0)  # before the next try: at first, at most
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")

_STATUS = re.compile(r"status code: (\d{3})(?:.*?<Code>(\w+)</Code>)?", re.DOTALL)
_WRITING = re.compile(r"performing (PUT|POST)")
_CAUSE = re.compile(r'\b(?:message|error): "([^"]+)"')


class Patience:
    """How long requests have failed in a row."""

    def __init__(self, url: str, what: str, seconds: float) -> None:
        self._url = url
        self._what = what
        self._seconds = seconds
        self.renew()

    def renew(self) -> None:
        self._first_failure: float | None = None
        self._pause = PAUSE_SECONDS[0]

    def wait(self, error: Exception) -> None:
        """Sleep until the next try. Raises BucketError if there should be none."""
        now = time.monotonic()
        self._first_failure = self._first_failure or now
        failed_seconds = now - self._first_failure
        status = _STATUS.search(str(error))
        code = int(status[1]) if status else 0
        hopeless = "redirect" in str(error) or "BadScheme" in str(error)
        if hopeless or (400 <= code < 500 and code not in (408, 429)):
            raise self._explained(error, code) from error
        if failed_seconds + self._pause > self._seconds:
            raise self._explained(error, code) from error
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, PAUSE_SECONDS[1])

    def insist_on_bucket(self, error: FileNotFoundError) -> None:
        """That an object is not there is an answer; that the bucket is not, is none."""
        if "NoSuchBucket" in str(error) or _WRITING.search(str(error)):
            raise self._explained(error, 404) from error

    def _explained(self, error: Exception, code: int) -> BucketError:
        at = endpoint()
        place = f"{self._url} at {at}" if at else self._url
        if code in (401, 403):
            advice = "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and what they allow"
        elif code == 404:
            advice = "make the bucket, or correct the setting `bucket`"
        elif "BadScheme" in str(error):
            advice = "AWS_ALLOW_HTTP=true allows a connection that is not encrypted"
        elif "redirect" in str(error):
            advice = "set AWS_REGION to the bucket's region"
        else:
            advice = "see whether it can be reached, and try again"
        return BucketError(f"cannot {self._what} {place}: {_reason(error)}; {advice}")


def endpoint() -> str:
    url = next((os.environ[name] for name in ENDPOINTS if os.environ.get(name)), "")
    return url.rpartition("@")[2]


def _reason(error: Exception) -> str:
    """What went wrong, in a few words out of the client's many."""
    text = str(error)
    if status := _STATUS.search(text):
        return f"HTTP {status[1]}" + (f" ({status[2]})" if status[2] else "")
    if "TimedOut" in text:
        return "no answer in time"
    if "BadScheme" in text:
        return "the endpoint is http://"
    if cause := _CAUSE.search(text):
        return cause[1]
    return first_line(error).rpartition(" - ")[2]


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
