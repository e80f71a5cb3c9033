"""The code that is in the working tree now, as a tree object.

git compares the working tree with a copy of the user's index and lists what differs; flor reads
those files itself, byte for byte, and writes the tree through the copy. What a file's content was
is remembered in `.flor/worktree.json` for as long as its size and times stay the same.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from flor.errors import GitError
from flor.git.hashes import Hashes
from flor.git.objects import Format, Object, start_writing
from flor.git.process import Git, TimedOut
from flor.git.selection import WITHHELD, File, Limits, choose
from flor.model import LeftOut

LISTED_LIMIT = 1000  # files that a version names as left out
BATCH_BYTES = 32 * 1024 * 1024  # content in memory at once
LEFTOVER_SECONDS = 3600  # a private index this old belongs to a process that was killed


class Entry(NamedTuple):
    """A line of a tree: a file, a link or a submodule."""

    mode: str
    oid: str
    path: bytes


@dataclass
class Survey:
    """How the working tree differs from the index."""

    files: list[File] = field(default_factory=list)
    submodules: list[bytes] = field(default_factory=list)
    gone: set[bytes] = field(default_factory=set)  # of the index, not to be in the tree
    left_out: list[LeftOut] = field(default_factory=list)

    def leave_out(self, file: File | bytes, reason: str) -> None:
        """Name a file that will not be in the tree."""
        path, size_bytes = (file, 0) if isinstance(file, bytes) else (file.path, file.size_bytes)
        if isinstance(file, bytes) or file.tracked:
            self.gone.add(path)
        self.left_out.append(LeftOut(printable(path), size_bytes, reason))


@dataclass(frozen=True)
class Code:
    """A tree, and what is not in it."""

    tree: str
    left_out: tuple[LeftOut, ...]


def printable(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")


@dataclass(frozen=True)
class WorkTree:
    """The working tree of `git`; `index` is the user's, if there is one."""

    git: Git
    flor_dir: Path
    form: Format
    index: Path | None = None
    executable_bit: bool = True  # the file system has one (core.fileMode)

    def code(self, limits: Limits) -> Code:
        """The working tree as it is. Raises TimedOut, or GitError."""
        fresh = Hashes(self._hashes, self.git)
        # A remembered object may be gone since; an index may be one that git cannot use.
        for index, hashes in (
            (self.index, Hashes.load(self._hashes, self.git)),
            (self.index, fresh),
        ):
            try:
                return self._code(limits, index, hashes)
            except TimedOut:
                raise
            except GitError:
                continue
        return self._code(limits, None, fresh)

    def only(self, paths: Sequence[bytes], limits: Limits) -> Code:
        """A tree of just these files."""
        survey = Survey()
        for path in dict.fromkeys(paths):
            self._look(survey, path, tracked=False)
        with private_index(self.flor_dir, None) as index:
            return self._write(survey, limits, index, Hashes(self._hashes, self.git))

    @property
    def _hashes(self) -> Path:
        return self.flor_dir / "worktree.json"

    def _code(self, limits: Limits, source: Path | None, hashes: Hashes) -> Code:
        with private_index(self.flor_dir, source) as index:
            survey = self._survey(index)
            code = self._write(survey, limits, index, hashes)
        hashes.save()
        return code

    def _survey(self, index: Path) -> Survey:
        args = ["-z", "-t", "-v", "--stage", "--cached", "--deleted", "--modified", "--others"]
        args += ["--exclude-standard", "--exclude=.flor/"]
        listed = self.git.run("ls-files", *args, index=index)
        survey = Survey()
        seen: set[bytes] = set()
        if b".flor/" in listed:
            survey.gone |= _own_files(listed)
        for line in listed.split(b"\0"):
            if line.startswith(b"H ") or not line:  # as the index has it: nearly all
                continue
            tag, _, rest = line.partition(b" ")
            tracked = tag != b"?"
            head, _, path = rest.partition(b"\t") if tracked else (b"", b"", rest)
            if path in seen or path in survey.gone:
                continue
            if len(seen) % 1024 == 0:
                self.git.deadline.remaining()
            if tag in b"Ss" and not os.path.lexists(self._at(path)):
                continue  # outside a sparse checkout: the index has it
            seen.add(path)
            self._look(survey, path, tracked, submodule=head.startswith(b"160000"))
        return survey

    def _look(self, survey: Survey, path: bytes, tracked: bool, submodule: bool = False) -> None:
        """Put `path` where it belongs in the survey."""
        try:
            info = os.lstat(self._at(path))
        except (FileNotFoundError, NotADirectoryError):
            survey.gone.add(path)
            return
        except OSError:
            survey.leave_out(path, "unreadable")
            return
        if stat.S_ISLNK(info.st_mode):
            mode = "120000"
        elif stat.S_ISREG(info.st_mode):
            executable = self.executable_bit and info.st_mode & stat.S_IXUSR
            mode = "100755" if executable else "100644"
        elif stat.S_ISDIR(info.st_mode):
            if submodule:
                survey.submodules.append(path)
            elif tracked:
                survey.gone.add(path)
            else:
                survey.leave_out(path, "nested repository")
            return
        else:
            survey.leave_out(path, "unreadable")
            return
        stamp = (info.st_mtime_ns, info.st_ctime_ns, info.st_size, info.st_ino)
        survey.files.append(File(path, mode, stamp, tracked))

    def _write(self, survey: Survey, limits: Limits, index: Path, hashes: Hashes) -> Code:
        """The tree of what the index has and the survey found."""
        submodules = [entry for path in survey.submodules if (entry := self._submodule(path))]
        survey.gone.update(survey.submodules)
        files, others = choose(survey.files, limits)
        for file, reason in others:
            survey.leave_out(file, reason)
        entries = self._entries(survey, files, limits.file_bytes, hashes)
        if entries or submodules or survey.gone:
            # The untracked come last and replace: a link where the index still has a folder.
            lines = [b"0 %s\t%s\0" % (self.form.null.encode(), path) for path in survey.gone]
            for mode, oid, path in (*submodules, *entries):
                lines.append(b"%s %s 0\t%s\0" % (mode.encode(), oid.encode(), path))
            self.git.run(
                *("update-index", "-z", "--index-info"),
                data=b"".join(lines),
                index=index,
                settings=["core.protectNTFS=false", "core.protectHFS=false"],
            )
        tree = self.git.run("write-tree", index=index).decode().strip()
        # Secrets are few and small, and who misses one should find it here.
        ranked = sorted(survey.left_out, key=lambda i: (i.reason != WITHHELD, -i.size_bytes))
        return Code(tree, tuple(sorted(ranked[:LISTED_LIMIT], key=lambda item: item.path)))

    def _entries(
        self, survey: Survey, files: list[File], limit: int, hashes: Hashes
    ) -> list[Entry]:
        """The files' contents, written to the repository; what cannot be read is left out."""
        entries: list[Entry] = []
        new: list[Object] = []
        waiting = 0
        for number, file in enumerate(sorted(files, key=lambda file: not file.tracked)):
            if number % 64 == 0:
                self.git.deadline.remaining()
            oid = hashes.get(file.path, file.stamp)
            if oid is None:
                blob = self._blob(survey, file, limit)
                if blob is None:
                    continue
                oid = blob.oid
                hashes.put(file.path, file.stamp, oid)
                new.append(blob)
                waiting += len(blob.data)
            entries.append(Entry(file.mode, oid, file.path))
            if waiting > BATCH_BYTES:
                start_writing(self.git, self.form, new).finish()
                new, waiting = [], 0
        if new:
            start_writing(self.git, self.form, new).finish()
        return entries

    def _blob(self, survey: Survey, file: File, limit: int) -> Object | None:
        """What is in a file. It may have changed or gone since it was listed."""
        where = self._at(file.path)
        try:
            if file.mode == "120000":
                return self.form.object("blob", os.readlink(where))
            data = read_regular(where, limit)
        except FileNotFoundError:
            survey.gone.add(file.path)
            return None
        except OSError:
            survey.leave_out(file, "unreadable")
            return None
        if len(data) > limit:
            survey.leave_out(file, "too large")
            return None
        return self.form.object("blob", data)

    def _submodule(self, path: bytes) -> Entry | None:
        """The commit that a submodule's folder is at; None where there is none."""
        folder = Path(os.fsdecode(self._at(path)))
        if not (folder / ".git").exists():
            return None
        inner = Git(folder, folder / ".git", self.git.deadline)
        try:
            head = inner.run("rev-parse", "--verify", "-q", "HEAD").decode().strip()
        except TimedOut:
            raise
        except GitError:
            return None
        return Entry("160000", head, path)

    def _at(self, path: bytes) -> bytes:
        return os.path.join(os.fsencode(self.git.root), path)


def _own_files(listed: bytes) -> set[bytes]:
    """The files of `.flor/` folders that somebody committed."""
    paths = (line.partition(b"\t")[2] for line in listed.split(b"\0") if b".flor/" in line)
    return {path for path in paths if path.startswith(b".flor/") or b"/.flor/" in path}


def read_regular(path: bytes, limit: int) -> bytes:
    """A regular file's bytes, and one more than `limit` if it has more. Never waits for a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path!r} is no regular file any more")
        parts, left = [], limit + 1
        while left > 0 and (part := file.read(min(left, BATCH_BYTES))):
            parts.append(part)
            left -= len(part)
    return b"".join(parts)


@contextmanager
def private_index(flor_dir: Path, source: Path | None) -> Iterator[Path]:
    """An index file of our own, a copy of `source` if that exists; gone afterwards."""
    folder = flor_dir / "tmp"
    path = folder / f"index-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        try:
            prepare(folder, flor_dir)
            if source is not None:
                _copy(source, path)
        except OSError as error:
            raise GitError(
                f"cannot prepare a version in {folder}: {error}; free space or mend its access"
            ) from error
        yield path
    finally:
        for name in (path.name, f"{path.name}.lock"):
            with suppress(OSError):
                (folder / name).unlink()


def prepare(folder: Path, flor_dir: Path) -> None:
    """Make `folder` in a `.flor/` that ignores itself, and sweep what killed processes left."""
    folder.mkdir(parents=True, exist_ok=True)
    ignore = flor_dir / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
    with os.scandir(folder) as leftovers:
        for item in leftovers:
            with suppress(OSError):
                if time.time() - item.stat().st_ctime > LEFTOVER_SECONDS:  # mtime is the user's
                    Path(item.path).unlink()


def _copy(source: Path, target: Path) -> None:
    """Copy an index with its own time: git tells by it which entries it must look at again."""
    try:
        with source.open("rb") as file:
            info = os.fstat(file.fileno())
            data = file.read()
    except FileNotFoundError:
        return
    target.write_bytes(data)
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))
