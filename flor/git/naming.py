"""Which file of a version is meant: by revision and path, and what it was called before."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import PurePosixPath

from flor.errors import GitError
from flor.git.process import Git
from flor.git.reading import files, read

SIMILAR = 0.5  # of two files' words; a file that was renamed shares so much
WORD = re.compile(rb"\w+")
MOST = 2000  # files of a version that are looked at


def commit_of(git: Git, revision: str) -> str | None:
    """The commit that a revision names; None if none does."""
    if not revision or revision.startswith("-"):
        return None
    try:
        found = git.run(
            "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"
        )
    except GitError:
        return None
    return found.decode().strip()


def find(git: Git, commit: str, path: str, content: bytes, here: frozenset[str]) -> str | None:
    """What a file is called in a version: `path`, or the most similar file that has no successor.

    `here` are the files of the newer version: one that is still there was not renamed.
    """
    theirs = files(git, commit)
    if path in theirs:
        return path
    suffix, ours = PurePosixPath(path).suffix, _words(content)
    gone = [p for p in theirs if PurePosixPath(p).suffix == suffix and p not in here]
    scored = []
    for name in gone[:MOST]:
        words = _words(read(git, commit, name))
        size = ours.total() + words.total()
        if size:
            scored.append((2 * (ours & words).total() / size, name))
    best = max(scored, default=(0.0, ""))
    return best[1] if best[0] >= SIMILAR else None


def between(git: Git, old: str, new: str, most: int) -> list[str]:
    """Some commits on the way from `new` back to `old`, the newest first."""
    try:
        listed = git.run("rev-list", "--first-parent", "--ancestry-path", f"{old}..{new}")
    except GitError:
        return []
    found = listed.decode().split()[1:]  # without `new`
    if len(found) <= most:
        return found
    return [found[round(n * (len(found) - 1) / (most - 1))] for n in range(most)]


def _words(content: bytes) -> Counter[bytes]:
    return Counter(WORD.findall(content))


def tracked(git: Git) -> frozenset[str]:
    """The files of the working tree that git knows."""
    listed = git.run("ls-files", "-z", "--full-name", ":/")
    return frozenset(os.fsdecode(path) for path in listed.split(b"\0") if path)
