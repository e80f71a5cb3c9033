"""Calling git: what it may see of the environment, how long it may take, what its failure says.

Hooks, fsmonitor, automatic gc, prompts and optional locks are off in every call, and variables
that a git around us may have set (`GIT_DIR`, `GIT_INDEX_FILE`…) do not reach it.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

from flor.errors import GitError

# How git reaches remotes, finds its own parts and its user's configuration; all other GIT_*
# variables describe some other call of git.
KEPT = (
    "GIT_ASKPASS",
    "GIT_CEILING_DIRECTORIES",
    "GIT_CONFIG_COUNT",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_KEY_",
    "GIT_CONFIG_NOSYSTEM",
    "GIT_CONFIG_SYSTEM",
    "GIT_CONFIG_VALUE_",
    "GIT_DISCOVERY_ACROSS_FILESYSTEM",
    "GIT_EXEC_PATH",
    "GIT_HTTP",
    "GIT_PROXY",
    "GIT_SSH",
    "GIT_SSL",
)
SETTINGS = (
    f"core.hooksPath={os.devnull}",
    "core.fsmonitor=",  # empty is "off" for every git; "false" names a hook for old ones
    "core.splitIndex=false",  # else a private index could write a shared one beside the user's
    "index.sparse=false",
    "core.logAllRefUpdates=false",
    "gc.auto=0",
    "maintenance.auto=false",
)
WINDOW = 64  # requests that are on their way to cat-file; far less than a pipe holds


class TimedOut(GitError):
    """The time that a snapshot may take is over."""


class Deadline:
    """A moment on the monotonic clock; `seconds` None never comes."""

    def __init__(self, seconds: float | None = None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def remaining(self) -> float | None:
        """Seconds left, more than 0. Raises TimedOut when there are none."""
        if self._end is None:
            return None
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimedOut("git took too long; raise snapshot_seconds if it always does")
        return left


UNLIMITED = Deadline()


@dataclass(frozen=True)
class Git:
    """git, called for one repository (`git_dir` None: for the one that it discovers)."""

    root: Path
    git_dir: Path | None = None

    def start(
        self,
        *args: str | bytes,
        data: bytes | None = None,
        index: Path | None = None,
        deadline: Deadline = UNLIMITED,
        online: bool = False,
        settings: Sequence[str] = (),
    ) -> Child:
        """Start `git args`; `data` is given to it when the child is finished."""
        options = [part for setting in (*SETTINGS, *settings) for part in ("-c", setting)]
        return Child(
            [b"git", *map(os.fsencode, (*options, *args))],
            name=os.fsdecode(args[0]),
            data=data,
            cwd=self.root,
            environment=environment(self, index, online),
            deadline=deadline,
            own_session=not online,  # ssh may ask for a passphrase on the terminal
        )

    def run(self, *args: str | bytes, **options: Any) -> bytes:
        """The output of `git args`. Raises GitError if it fails."""
        return self.start(*args, **options).finish()


def environment(git: Git, index: Path | None, online: bool) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name.startswith(KEPT)
    }
    kept |= {
        "LC_ALL": "C",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
    }
    if not online:
        kept["GIT_NO_LAZY_FETCH"] = "1"
    if git.git_dir is not None:
        kept |= {"GIT_DIR": str(git.git_dir), "GIT_WORK_TREE": str(git.root)}
    if index is not None:
        kept["GIT_INDEX_FILE"] = str(index)
    return kept


class Child:
    """A git process. It and its own children are gone once `finish` or `kill` is over."""

    def __init__(
        self,
        command: Sequence[bytes],
        *,
        name: str,
        data: bytes | None,
        cwd: Path,
        environment: dict[str, str],
        deadline: Deadline,
        own_session: bool,
    ) -> None:
        self._name = name
        self._data = data
        self._deadline = deadline
        self._own_session = own_session
        self.said = ""  # on stderr, once it has finished
        self._cwd = cwd
        deadline.remaining()
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if data is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=cwd,
                env=environment,
                start_new_session=own_session,
            )
        except OSError as error:
            if not cwd.is_dir():
                raise GitError(
                    f"cannot use git in {cwd}: {error}; does the folder exist?"
                ) from error
            raise GitError(f"cannot start git ({error}); install it or mend PATH") from error

    def finish(self, ok: Sequence[int] = (0,)) -> bytes:
        """Its whole output. Raises GitError unless its exit code is one of `ok`."""
        try:
            out, err = self.process.communicate(self._data, self._deadline.remaining())
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimedOut(f"git {self._name} took too long in {self._cwd}") from None
        except BaseException:  # Ctrl-C included: no process may outlive this call
            self.kill()
            raise
        self.said = err.decode(errors="replace").strip()
        if self.process.returncode not in ok:
            raise self._failure(err)
        return out

    def code(self) -> int:
        """Its exit code, whatever it is."""
        self.finish(ok=range(-255, 256))
        return int(self.process.returncode)

    def kill(self) -> None:
        import signal

        # Once it was waited for, its number may be that of somebody else's process.
        if self.process.returncode is None:
            with suppress(OSError):
                if self._own_session:
                    os.killpg(self.process.pid, signal.SIGKILL)
                else:
                    self.process.kill()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self.process.wait()

    def _failure(self, err: bytes) -> GitError:
        said = err.decode(errors="replace").strip() or f"exit code {self.process.returncode}"
        return GitError(
            f"git {self._name} failed in {self._cwd}: {said}; `git status` there may say more"
        )


class Found(NamedTuple):
    """An object that cat-file gave."""

    oid: str
    kind: str
    data: bytes


class Batch:
    """One `git cat-file --batch`: objects by name (`HEAD`, a ref, an id, `commit:path`)."""

    def __init__(self, git: Git, deadline: Deadline = UNLIMITED) -> None:
        self._child = git.start("cat-file", "--batch", data=b"", deadline=deadline)
        self._deadline = deadline
        self._watch = None
        seconds = deadline.remaining()
        if seconds is not None:
            from threading import Timer

            self._watch = Timer(seconds, self._child.process.kill)
            self._watch.daemon = True
            self._watch.start()

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._child.kill()

    def get(self, name: str | bytes) -> Found | None:
        """The object called `name`, or None."""
        return next(self.many([name]))

    def many(self, names: Iterable[str | bytes]) -> Iterator[Found | None]:
        """The objects in the order of their names, as they come; None where there is none."""
        waiting = iter(names)
        while window := list(islice(waiting, WINDOW)):
            self._ask(window)
            for _ in window:
                yield self._answer()

    def _ask(self, names: Sequence[str | bytes]) -> None:
        stdin: IO[bytes] = self._child.process.stdin  # type: ignore[assignment]  # it is a pipe
        try:
            stdin.write(b"".join(os.fsencode(name) + b"\n" for name in names))
            stdin.flush()
        except OSError as error:
            raise self._ended() from error

    def _answer(self) -> Found | None:
        stdout: IO[bytes] = self._child.process.stdout  # type: ignore[assignment]  # it is a pipe
        head = stdout.readline()
        if not head.endswith(b"\n"):
            raise self._ended()
        words = head.split()
        if len(words) != 3 or not words[2].isdigit():  # "NAME missing", "NAME ambiguous"
            return None
        data = stdout.read(int(words[2]) + 1)
        if len(data) != int(words[2]) + 1:
            raise self._ended()
        return Found(words[0].decode(), words[1].decode(), data[:-1])

    def _ended(self) -> GitError:
        self._deadline.remaining()
        stderr: IO[bytes] = self._child.process.stderr  # type: ignore[assignment]  # it is a pipe
        return self._child._failure(stderr.read())
