"""The bucket: where objects are that the disk has no room for, and where other machines find them.

`s3://name/prefix` holds the object `abcdef…` under `prefix/objects/ab/cdef…`; other keys are
somebody else's. Endpoint, region and credentials come from the environment (`AWS_…`), as the
`obstore` package reads them. What goes there was checked before, what comes from there is checked
on its way; nothing is ever removed there. That an object there is right is known by its ETag, where
it is that of an upload or a download of this machine; else by reading it.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from flor.config import MiB, Settings
from flor.errors import BucketError, ConfigError, ObjectMissing
from flor.objects import ObjectStore, is_digest, open_object, partial_of
from flor.store.patience import PAUSE_SECONDS, Patience, endpoint, first_line
from flor.store.receipts import FILE, Receipts

T = TypeVar("T")

CONNECT_SECONDS = 5
QUICK_SECONDS = 20  # for a request that moves no content
SILENT_SECONDS = 30  # a download that brings nothing for so long is broken off
PART_SECONDS = 180  # for one part of an upload
PATIENCE_SECONDS = 20.0  # from a first failure; after it nothing is tried again

PART_BYTES = 8 * MiB  # of an upload; what is no larger goes in one request
MOST_PARTS = 9000  # S3 allows 10,000
PARTS_AT_ONCE = 3
BLOCK_BYTES = 4 * MiB  # of a download

CREDENTIALS = (
    *("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
    *("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_METADATA_ENDPOINT"),
)
CLIENT_OPTIONS = (
    *("allow_http", "allow_invalid_certificates", "proxy_url", "proxy_ca_certificate"),
    "proxy_excludes",
)

_user_pid: int | None = None  # the process whose threads do obstore's work


class _Arrived(NamedTuple):
    """What a download brought. `etag` is None if the server gave none, or several."""

    digest: str
    etag: str | None


class Bucket:
    """The objects in an S3-compatible bucket. Nothing is opened before the first question.

    A network that fails is tried again for `patience_seconds` from its first failure; then
    BucketError says what did not work, and what to do.
    """

    def __init__(
        self,
        url: str,
        *,
        receipts: Path | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        parts = urlsplit(url)
        self._name, self._prefix = parts.netloc, parts.path.strip("/")
        if parts.scheme != "s3" or not self._name or parts.query or parts.fragment:
            raise ConfigError(
                f"bucket = {url!r} is not understood; give s3://name or s3://name/prefix"
            )
        self.url = f"s3://{self._name}/{self._prefix}".rstrip("/")
        self._patience_seconds = patience_seconds
        self._receipts = Receipts(receipts, f"{self.url} {endpoint()}")
        self._stores: dict[tuple[int, int | None], Any] = {}
        self._lock = threading.Lock()

    def fetch(
        self, digest: str, path: Path, advance: Callable[[int], None] = lambda size: None
    ) -> bool:
        """Bring an object to `path`, whole and checked; False if it is not in the bucket.

        `advance` is told of bytes that came, and may raise to break it off. Raises BucketError;
        then nothing is at `path` that was not there before.
        """
        incoming = partial_of(path)
        try:
            with incoming.open("xb") as file:
                arrived = self._download(digest, file.write, advance)
            if arrived is not None:
                incoming.replace(path)
                self._receipts.add(digest, arrived.etag)
        except OSError as error:
            raise BucketError(
                f"cannot write {path} from {self.url}: {error.strerror or error}; make room or "
                "mend the access to the folder"
            ) from error
        finally:
            with contextlib.suppress(OSError):
                incoming.unlink()
        return arrived is not None

    def read(self, digest: str) -> bytes | None:
        """The checked bytes of an object; None if it is not there. Raises BucketError."""
        blocks: builtins.list[bytes] = []
        return None if self._download(digest, blocks.append) is None else b"".join(blocks)

    def put(
        self, digest: str, path: Path, advance: Callable[[int], None] = lambda size: None
    ) -> bool:
        """Have the object in the bucket; whether it had to be uploaded.

        What is there with the right size stays. The file's content is checked on its way, and
        nothing appears in the bucket that has another digest: ObjectMissing. `advance` is told of
        bytes that go (of a failed try: backwards), and may raise to break it off. Doing it twice,
        or at once with somebody else, does no harm. Raises BucketError.
        """
        try:
            size_bytes = path.stat().st_size
        except OSError as error:
            raise ObjectMissing(f"cannot read {path}: {error.strerror}") from error
        if self.size(digest) == size_bytes:
            return False
        self._upload(digest, path, size_bytes, advance)
        return True

    def secure(
        self, digest: str, path: Path, size_bytes: int, advance: Callable[[int], None]
    ) -> bool:
        """Have the object in the bucket with the right content; whether it had to be uploaded.

        As `put`, but for what is there with the right size and has another ETag than it had when
        it was known to be right: that is read back, and replaced if its content is another.
        `advance` is told of bytes that are read or go. Raises ObjectMissing, BucketError.
        """
        if self._holds(digest, size_bytes, advance):
            return False
        self._upload(digest, path, size_bytes, advance)
        if not self._holds(digest, size_bytes, advance):
            raise ObjectMissing(
                f"{self.url}/{_key(digest)} has another content than was uploaded; the copy "
                f"{path} stays; see who else writes there"
            )
        return True

    def has_receipt(self, digest: str) -> bool:
        """Whether `secure` may do without reading the object."""
        return self._receipts.get(digest) is not None

    def size(self, digest: str) -> int | None:
        """How large the object in the bucket is; None if it is not there. Raises BucketError."""
        facts = self._head(digest)
        return None if facts is None else int(facts["size"])

    def has(self, digest: str) -> bool:
        """Whether the bucket holds the object. Raises BucketError."""
        return self.size(digest) is not None

    def list(self) -> dict[str, int]:
        """All objects in the bucket, and their sizes. Raises BucketError."""
        return self._ask("list", self._list)

    # --- requests ---------------------------------------------------------------------------------

    def _head(self, digest: str) -> Any:
        with contextlib.suppress(FileNotFoundError):
            return self._ask("look into", lambda: self._obstore.head(self._quick, _key(digest)))
        return None

    def _holds(self, digest: str, size_bytes: int, advance: Callable[[int], None]) -> bool:
        """Whether the bucket has the object with the right content, by its ETag or by reading."""
        facts = self._head(digest)
        if facts is None or int(facts["size"]) != size_bytes:
            return False
        etag = facts["e_tag"]
        if etag and self._receipts.get(digest) == etag:
            return True
        arrived = self._receive(digest, lambda block: None, advance)
        if arrived is None or arrived.digest != digest:
            return False
        self._receipts.add(digest, arrived.etag)
        return True

    def _upload(
        self, digest: str, path: Path, size_bytes: int, advance: Callable[[int], None]
    ) -> None:
        send = self._send_whole if size_bytes <= PART_BYTES else self._send_parts
        what = f"upload {digest[:12]}… to"
        self._receipts.add(
            digest, self._ask(what, partial(send, digest, path, size_bytes, advance))
        )

    def _list(self) -> dict[str, int]:
        found = {}
        for batch in self._obstore.list(self._quick, "objects"):
            for facts in batch:
                digest = facts["path"].removeprefix("objects/").replace("/", "")
                if is_digest(digest) and facts["path"] == _key(digest):
                    found[digest] = int(facts["size"])
        return found

    def _download(
        self,
        digest: str,
        write: Callable[[bytes], object],
        advance: Callable[[int], None] = lambda size: None,
    ) -> _Arrived | None:
        """Hand the object's content to `write`; None if it is not there. Raises BucketError."""
        arrived = self._receive(digest, write, advance)
        if arrived is not None and arrived.digest != digest:
            raise BucketError(
                f"{self.url}/{_key(digest)} is damaged: its content has digest "
                f"{arrived.digest[:12]}…; remove it there and run `flor objects push` where "
                "the object is intact"
            )
        return arrived

    def _receive(
        self, digest: str, write: Callable[[bytes], object], advance: Callable[[int], None]
    ) -> _Arrived | None:
        """What the key holds, whatever it is; a connection that breaks is taken up again."""
        hasher, place = hashlib.blake2b(digest_size=32), 0
        etags: set[str | None] = set()
        patience = Patience(self.url, f"fetch {digest[:12]}… from", self._patience_seconds)
        store = self._store(24 * 3600, SILENT_SECONDS)
        whole = None
        while whole is None or place < whole:
            options = {"range": {"offset": place}} if place else None
            try:
                answer = self._obstore.get(store, _key(digest), options=options)
                whole = int(answer.meta["size"])
                etags.add(answer.meta["e_tag"])
                stream = iter(answer.stream(BLOCK_BYTES))
            except FileNotFoundError as error:
                patience.insist_on_bucket(error)
                return None
            except self._obstore.exceptions.BaseError as error:
                patience.wait(error)
                continue
            for block in _until_broken(stream, self._obstore.exceptions.BaseError, patience):
                write(block)
                hasher.update(block)
                place += len(block)
                advance(len(block))
        # With two of them, the object was replaced while it was read: neither was read as a whole.
        return _Arrived(hasher.hexdigest(), etags.pop() if len(etags) == 1 else None)

    def _send_whole(
        self, digest: str, path: Path, size_bytes: int, advance: Callable[[int], None]
    ) -> str | None:
        content = b"".join(_checked(digest, path))
        facts = self._obstore.put(self._bulk, _key(digest), content, use_multipart=False)
        advance(size_bytes)
        return _etag(facts)

    def _send_parts(
        self, digest: str, path: Path, size_bytes: int, advance: Callable[[int], None]
    ) -> str | None:
        sent = 0

        def blocks() -> Iterator[bytes]:
            nonlocal sent
            for block in _checked(digest, path):
                yield block
                sent += len(block)
                advance(len(block))

        part_bytes = max(PART_BYTES, -(-size_bytes // MOST_PARTS))
        limits = {"chunk_size": part_bytes, "max_concurrency": PARTS_AT_ONCE}
        try:
            # An iterator that raises ends the upload, whose parts are then given up.
            return _etag(self._obstore.put(self._bulk, _key(digest), blocks(), **limits))
        except self._obstore.exceptions.BaseError:
            advance(-sent)
            raise

    def _ask(self, what: str, request: Callable[[], T]) -> T:
        """The answer to a request, after some tries. Raises BucketError or FileNotFoundError."""
        patience = Patience(self.url, what, self._patience_seconds)
        while True:
            try:
                return request()
            except FileNotFoundError as error:
                patience.insist_on_bucket(error)
                raise
            except self._obstore.exceptions.BaseError as error:
                patience.wait(error)

    # --- the client -------------------------------------------------------------------------------

    @property
    def _obstore(self) -> Any:
        try:
            import obstore
        except ImportError as error:
            raise BucketError(
                f"{self.url} needs the S3 client; run: pip install 'flor-hindsight[s3]'"
            ) from error
        return obstore

    @property
    def _quick(self) -> Any:
        return self._store(QUICK_SECONDS)

    @property
    def _bulk(self) -> Any:
        return self._store(PART_SECONDS)

    def _store(self, request_seconds: int, silent_seconds: int | None = None) -> Any:
        global _user_pid
        with self._lock:
            if _user_pid is None:
                _user_pid = os.getpid()
            if os.getpid() != _user_pid:
                raise BucketError(
                    f"{self.url} cannot be reached from a process that was forked from one that "
                    "had used it; run `flor objects pull RUN` before"
                )
            key = request_seconds, silent_seconds
            if key not in self._stores:
                self._stores[key] = self._open(request_seconds, silent_seconds)
            return self._stores[key]

    def _open(self, request_seconds: int, silent_seconds: int | None) -> Any:
        _insist_on_credentials(self.url)
        obstore = self._obstore
        from obstore.store import S3Store

        options: Any = {
            name: os.environ[f"AWS_{name.upper()}"]
            for name in CLIENT_OPTIONS  # given options replace those of the environment
            if os.environ.get(f"AWS_{name.upper()}")
        }
        options |= {"connect_timeout": f"{CONNECT_SECONDS}s", "timeout": f"{request_seconds}s"}
        if silent_seconds is not None:
            options["read_timeout"] = f"{silent_seconds}s"
        try:
            return S3Store(
                self._name,
                prefix=self._prefix or None,
                client_options=options,
                retry_config=_retries(2 if request_seconds == PART_SECONDS else 0),
            )
        except obstore.exceptions.BaseError as error:
            raise BucketError(
                f"{self.url}: {first_line(error)}; mend the AWS_… settings"
            ) from error


def bucket_of(settings: Settings) -> Bucket | None:
    """The project's bucket, if one is set."""
    if not settings.bucket:
        return None
    return Bucket(settings.bucket, receipts=settings.flor_dir / FILE)


def store_of(settings: Settings) -> ObjectStore:
    """The project's objects; what is not here comes from the bucket, if one is set."""
    return ObjectStore(settings.objects_dir, bucket_of(settings))


def _key(digest: str) -> str:
    if not is_digest(digest):
        raise ObjectMissing(f"{digest!r} is not the digest of an object (64 hex digits)")
    return f"objects/{digest[:2]}/{digest[2:]}"


def _etag(facts: Any) -> str | None:
    return facts["e_tag"] or None


def _checked(digest: str, path: Path) -> Iterator[bytes]:
    """The file in blocks. Raises ObjectMissing instead of ending if its digest is another."""
    hasher = hashlib.blake2b(digest_size=32)
    try:
        with open_object(path) as file:
            while block := file.read(BLOCK_BYTES):
                hasher.update(block)
                yield block
    except OSError as error:
        raise ObjectMissing(f"cannot read {path}: {error.strerror}") from error
    if hasher.hexdigest() != digest:
        raise ObjectMissing(
            f"{path} is damaged and was not uploaded: its content has digest "
            f"{hasher.hexdigest()[:12]}…; remove it, and copy it from the machine that wrote it"
        )


def _until_broken(
    stream: Iterator[Any], failure: type[Exception], patience: Patience
) -> Iterator[bytes]:
    """What comes until the stream ends, or breaks and may be taken up again."""
    while True:
        try:
            block = bytes(next(stream))
        except StopIteration:
            return
        except failure as error:
            patience.wait(error)
            return
        patience.renew()
        yield block


def _insist_on_credentials(url: str) -> None:
    """Without any, the client would ask the machine's cloud for some, at an address of its own."""
    keys = all(os.environ.get(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
    public = os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true", "yes", "on")
    if not keys and not public and not any(os.environ.get(name) for name in CREDENTIALS):
        raise BucketError(
            f"no credentials for {url}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, such as "
            'with eval "$(aws configure export-credentials --format env)"'
        )


def _retries(count: int) -> Any:
    """Of one part of an upload, which would begin anew otherwise; the rest is `Patience`."""
    from datetime import timedelta

    pauses = {
        "init_backoff": timedelta(seconds=PAUSE_SECONDS[0]),
        "max_backoff": timedelta(seconds=1),
    }
    return {
        "max_retries": count,
        "backoff": {**pauses, "base": 2},
        "retry_timeout": timedelta(minutes=3),
    }
