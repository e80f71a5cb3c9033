"""What a version holds: its files, one of them, how two differ, and a folder made of one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from flor.errors import GitError
from flor.git.process import Batch, Git

OBJECT_ID = re.compile(r"[0-9a-f]{4,64}")


class Item(NamedTuple):
    """A file, link or submodule of a version."""

    mode: str
    kind: str
    oid: str
    path: bytes


def checked_id(commit: str) -> str:
    """`commit` itself, if it is an object's id and not an option or a path."""
    if not OBJECT_ID.fullmatch(commit):
        raise GitError(f"{commit!r} is no commit id; `flor runs` lists the versions")
    return commit


def items(git: Git, commit: str) -> Iterator[Item]:
    """All that a version holds, without `.flor/`."""
    listed = git.run("ls-tree", "-r", "-z", "--full-tree", checked_id(commit))
    for line in listed.split(b"\0")[:-1]:
        head, _, path = line.partition(b"\t")
        if not path.startswith(b".flor/"):
            mode, kind, oid = head.decode().split()
            yield Item(mode, kind, oid, path)


def files(git: Git, commit: str) -> dict[str, str]:
    """Blob id of each path (as `os.fsdecode` gives it)."""
    found = items(git, commit)
    return {os.fsdecode(item.path): item.oid for item in found if item.kind == "blob"}


def read(git: Git, commit: str, path: str) -> bytes:
    """The bytes of a file, or a link's target."""
    name = f"{checked_id(commit)}:{path}"
    try:
        return git.run("cat-file", "blob", name)
    except GitError as error:
        raise GitError(
            f"version {commit[:10]} has no file {path!r}; `git ls-tree -r {commit[:10]}` lists it"
        ) from error


def diff(git: Git, old: str, new: str, *, color: bool, stat: bool) -> str:
    """The difference between the code of two commits or trees, as git prints it."""
    shape = ["--stat=100"] if stat else ["--patch"]
    shape += ["--color=always" if color else "--no-color", "--no-ext-diff", "--no-textconv"]
    shape += ["--find-renames", "--src-prefix=a/", "--dst-prefix=b/"]
    ends = [checked_id(old), checked_id(new)]
    # Filters and drivers of the working tree's attributes must not run; the pathspec is ours.
    text = git.run("diff-tree", "-r", *shape, *ends, "--", ":(top,exclude).flor")
    return text.decode("utf-8", "replace")


def checkout(git: Git, commit: str, into: Path) -> None:
    """Write a version's files into the empty (or new) folder `into`, byte for byte.

    A submodule is an empty folder. Links are made last, so that no file is written through one.
    """
    into.mkdir(parents=True, exist_ok=True)
    if any(into.iterdir()):
        raise GitError(f"cannot check out version {commit[:10]}: {into} is not empty")
    found = list(items(git, commit))
    for item in found:
        _check_path(item.path)
    top = os.fsencode(into)
    folders = {os.path.dirname(item.path) for item in found if item.kind == "blob"}
    folders |= {item.path for item in found if item.kind == "commit"}
    for folder in sorted(folders):
        os.makedirs(os.path.join(top, folder), exist_ok=True)
    blobs = sorted(
        (item for item in found if item.kind == "blob"), key=lambda i: i.mode == "120000"
    )
    with Batch(git) as batch:
        for item, blob in zip(blobs, batch.many(item.oid for item in blobs), strict=True):
            if blob is None:
                raise GitError(f"version {commit[:10]} lacks {item.path!r}; fetch it and try again")
            try:
                _write(os.path.join(top, item.path), item.mode, blob.data)
            except OSError as error:
                raise GitError(f"cannot write {item.path!r} into {into}: {error}") from error


def _check_path(path: bytes) -> None:
    """A branch that was fetched may hold paths that lead out of the folder."""
    if {b"", b".", b".."} & set(path.split(b"/")) or b".git" in path.lower().split(b"/"):
        raise GitError(f"the version holds the path {path!r}, which git itself never makes")


def _write(path: bytes, mode: str, data: bytes) -> None:
    if mode == "120000":
        os.symlink(data, path)
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o777 if mode == "100755" else 0o666)
    with open(descriptor, "wb") as file:
        file.write(data)
