"""Calling git: what it may see of the environment, how long it may take, what its failure says.

Hooks, fsmonitor, automatic gc, prompts and optional locks are off in every call, and variables
that a git around us may have set (`GIT_DIR`, `GIT_INDEX_FILE`…) do not reach it.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

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
WINDOW = 64  # requests that are on their way to cat-file
CHUNK_BYTES = 256 * 1024  # read at once from a pipe
GRACE_SECONDS = 0.1  # between SIGTERM, at which git removes its lock files, and SIGKILL
REAP_SECONDS = 1.0  # a process in a system call that does not return outlives SIGKILL


class TimedOut(GitError):
    """The time that git may take is over."""


class Deadline:
    """A moment on the monotonic clock, `seconds` from now; None never comes.

    `spent` are the seconds of an earlier deadline that this one follows on.
    """

    def __init__(self, seconds: float | None = None, *, spent: float = 0.0) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self._told = spent + (seconds or 0.0)

    def remaining(self, doing: str = "a snapshot") -> float | None:
        """Seconds left, more than 0. Raises TimedOut when there are none."""
        if self._end is None:
            return None
        left = self._end - time.monotonic()
        if left <= 0:
            raise self.missed(doing)
        return left

    def missed(self, doing: str) -> TimedOut:
        """The error that names the time and what was going on when it was over."""
        told = f"{round(self._told, 1):g} s"
        return TimedOut(f"git did not answer within {told} ({doing}); try `git status` there")


UNLIMITED = Deadline()


@dataclass(frozen=True)
class Git:
    """git, called for one repository (`git_dir` None: for the one that it discovers).

    All calls together end by `deadline`; then TimedOut is raised, and no process is left.
    """

    root: Path
    git_dir: Path | None = None
    deadline: Deadline = field(default=UNLIMITED, compare=False, repr=False)

    def start(
        self,
        *args: str | bytes,
        data: bytes | None = None,
        index: Path | None = None,
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
            deadline=self.deadline,
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
        self.deadline = deadline
        self.owner = os.getpid()  # after a fork, there are two that know of it
        self.doing = f"git {name} in {cwd}"
        self._name, self._cwd = name, cwd
        self._data = data
        self._own_session = own_session
        self.said = ""  # on stderr, once it has finished
        deadline.remaining(self.doing)
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
        _running.add(self)
        if _abandoned:
            self.kill()
            raise GitError(f"{self.doing} was not waited for, because the process ends")

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def finish(self, ok: Sequence[int] = (0,)) -> bytes:
        """Its whole output. Raises GitError unless its exit code is one of `ok`."""
        try:
            left = self.deadline.remaining(self.doing)
            out, err = self.process.communicate(self._data, left)
        except subprocess.TimeoutExpired:
            self._stop()
            raise self.deadline.missed(self.doing) from None
        except BaseException:  # Ctrl-C included: no process may outlive this call
            self._stop()
            raise
        _running.discard(self)
        self.said = err.decode(errors="replace").strip()
        if self.process.returncode not in ok:
            raise self.failure(self.said)
        return out

    def code(self) -> int:
        """Its exit code, whatever it is."""
        self.finish(ok=range(-255, 256))
        return int(self.process.returncode)

    def kill(self) -> None:
        """End it at once, with its own children; nothing happens if it has finished."""
        self.send(signal.SIGKILL)
        _running.discard(self)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(REAP_SECONDS)

    def _stop(self) -> None:
        """End it so that it can remove its lock files first."""
        self.send(signal.SIGTERM)
        time.sleep(GRACE_SECONDS)
        self.kill()

    def send(self, number: signal.Signals) -> None:
        """Send it to the process and its own children, if it has not finished."""
        # Once it was waited for, its number may be that of somebody else's process.
        if self.process.returncode is None:
            with suppress(OSError):
                if self._own_session:
                    os.killpg(self.process.pid, number)
                else:
                    self.process.send_signal(number)

    def failure(self, said: str) -> GitError:
        """The error that it ended with, having said this."""
        why = said.strip() or f"exit code {self.process.returncode}"
        return GitError(
            f"git {self._name} failed in {self._cwd}: {why}; `git status` there may say more"
        )


_running: set[Child] = set()
_abandoned = False


def abandon() -> None:
    """End every git that this process has started, in whatever thread: the process ends itself.

    The calls that wait for one raise GitError, and so does every later call.
    """
    global _abandoned
    _abandoned = True
    left = [child for child in list(_running) if child.owner == os.getpid()]
    for child in left:
        child.send(signal.SIGTERM)
    if left:
        time.sleep(GRACE_SECONDS)
    for child in left:
        child.send(signal.SIGKILL)


class Found(NamedTuple):
    """An object that cat-file gave."""

    oid: str
    kind: str
    data: bytes


class Batch:
    """One `git cat-file --batch`: objects by name (`HEAD`, a ref, an id, `commit:path`)."""

    def __init__(self, git: Git) -> None:
        self._child = git.start("cat-file", "--batch", data=b"")
        process = self._child.process
        assert process.stdin and process.stdout and process.stderr  # they are pipes
        self._stdin, self._stdout = process.stdin.fileno(), process.stdout.fileno()
        self._stderr = process.stderr.fileno()
        self._asked = bytearray()  # names that git has not taken yet
        self._given = bytearray()  # what it said that no caller has taken yet
        self._said = bytearray()  # on stderr
        self._ready = select.poll()
        for pipe in (self._stdout, self._stderr):
            self._ready.register(pipe, select.POLLIN)

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._child.kill()

    def get(self, name: str | bytes) -> Found | None:
        """The object called `name`, or None."""
        return next(self.many([name]))

    def many(self, names: Iterable[str | bytes]) -> Iterator[Found | None]:
        """The objects in the order of their names, as they come; None where there is none."""
        waiting = iter(names)
        while window := list(islice(waiting, WINDOW)):
            self._asked += b"".join(os.fsencode(name) + b"\n" for name in window)
            self._ready.register(self._stdin, select.POLLOUT)
            for _ in window:
                yield self._answer()

    def _answer(self) -> Found | None:
        while (end := self._given.find(b"\n")) < 0:
            self._exchange()
        words = self._take(end + 1).split()
        if len(words) != 3 or not words[2].isdigit():  # "NAME missing", "NAME ambiguous"
            return None
        data = self._take(int(words[2]))
        self._take(1)
        return Found(words[0].decode(), words[1].decode(), data)

    def _take(self, size_bytes: int) -> bytes:
        while len(self._given) < size_bytes:
            self._exchange()
        with memoryview(self._given) as view:
            data = bytes(view[:size_bytes])
        del self._given[:size_bytes]
        return data

    def _exchange(self) -> None:
        """Wait until git takes or gives some bytes. Raises GitError if it gives no more."""
        left = self._child.deadline.remaining(self._child.doing)
        for pipe, _ in self._ready.poll(None if left is None else left * 1000 + 1):
            if pipe == self._stdin:
                self._send()
            elif part := os.read(pipe, CHUNK_BYTES):
                (self._given if pipe == self._stdout else self._said).extend(part)
            elif pipe == self._stdout:
                self._child.finish(ok=range(-255, 256))
                raise self._child.failure(self._said.decode(errors="replace") + self._child.said)
            else:
                self._ready.unregister(pipe)

    def _send(self) -> None:
        try:
            del self._asked[: os.write(self._stdin, self._asked[: select.PIPE_BUF])]
        except BrokenPipeError:  # it has ended; then stdout does, too
            self._asked.clear()
        if not self._asked:
            self._ready.unregister(self._stdin)
