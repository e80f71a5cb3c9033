"""flor's own branch: which one it is, its versions, and how commits join it.

A commit joins by compare-and-swap of the ref; who loses the race takes the new tip as parent.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flor.errors import GitError
from flor.git.objects import Commit, Format, Object, parse_commit, start_writing, trailers
from flor.git.process import Batch, Child, Git, TimedOut

FALLBACKS = 9  # "flor-runs" … "flor-runs-9", if the names before are the user's own
PATIENCE_SECONDS = 2.0  # with a ref that is locked and does not move
STALE_SECONDS = 60.0  # no git holds the lock of a ref for so long
LOST = "but expected|already exists|File exists|incorrect old value|reference is missing"
LOST += "|cannot lock references|data is locked"  # the reftable format
LOCK = re.compile(r"Unable to create '(.+?\.lock)': File exists")
LOOK_BACK = 64  # commits to search for the newest version
FIELDS = ("%(refname)", "%(contents)", "%(worktreepath)", "%(objectname)")


class LostRace(GitError):
    """Another process changed the branch first, or holds its lock."""


class Patience:
    """How long to try again after a lost race.

    While the ref moves, others get on, and so shall we. One that stands still has a stale lock.
    """

    def __init__(self) -> None:
        self._tip: str | None = ""
        self._end = 0.0
        self._race: LostRace | None = None

    def lost(self, race: LostRace, tip: Commit | None) -> None:
        """Wait a moment after `race`, lost over `tip`. Raises GitError if enough were lost."""
        now = time.monotonic()
        oid = tip.oid if tip else None
        if oid != self._tip:
            self._tip, self._end = oid, now + PATIENCE_SECONDS
        if now > self._end:
            raise GitError(str(race)) from race
        self._race = race
        # Not `random`: the training's numbers are none of our business.
        time.sleep(0.02 * (os.urandom(1)[0] / 255))

    def explained(self, late: TimedOut) -> TimedOut:
        """`late`, or what the time went by with."""
        return late if self._race is None else TimedOut(str(self._race))


@dataclass(frozen=True)
class Ref:
    """A ref as for-each-ref shows it."""

    name: str
    by_flor: bool
    checked_out: bool
    oid: str


@dataclass(frozen=True)
class Known:
    """A version that the branch has."""

    commit: str
    tree: str


def candidates(branch: str) -> list[str]:
    """The names that flor's branch may have, in order of preference."""
    valid = re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*", branch)
    if not valid or ".." in branch or branch.endswith((".", ".lock")):
        raise GitError(f"branch = {branch!r} is no name for a branch; set another")
    numbered = (f"{branch}-runs-{number}" for number in range(2, FALLBACKS + 1))
    return [branch, f"{branch}-runs", *numbered]


def start_listing(git: Git, branch: str) -> Child:
    """Start to list all refs that matter to the choice of a branch."""
    parts = branch.split("/")
    patterns = ["/".join(["refs/heads", *parts[:end]]) for end in range(1, len(parts))]
    for name in candidates(branch):
        patterns += [f"refs/heads/{name}", f"refs/remotes/*/{name}"]
    return git.start("for-each-ref", "--format=" + "%00".join(FIELDS) + "%00", *patterns)


def parse_listing(listed: bytes) -> list[Ref]:
    fields = listed.split(b"\0")
    return [
        Ref(
            name=name.lstrip(b"\n").decode(errors="surrogateescape"),
            by_flor=any(key.startswith("Flor-") for key in trailers(contents)),
            checked_out=bool(where),
            oid=oid.decode(),
        )
        for name, contents, where, oid in zip(*(fields[i:-1:4] for i in range(4)), strict=True)
    ]


def choose(branch: str, refs: Sequence[Ref], heads: frozenset[str]) -> str:
    """The ref that flor writes to: never one that the user made or has checked out.

    Once a fallback exists it stays the choice, even if the first name becomes free; but where both
    are flor's, since the first was checked out for a while, it is the first again.
    """
    usable = [name for name in candidates(branch) if not _taken(name, refs, heads)]
    present = {ref.name for ref in refs}
    shared = {ref.name.split("/", 3)[-1] for ref in refs if ref.name.startswith("refs/remotes/")}
    for known in ({name for name in usable if f"refs/heads/{name}" in present}, shared):
        existing = [name for name in usable if name in known]
        if existing:
            return f"refs/heads/{existing[0]}"
    if not usable:
        raise GitError(f"all branches from {branch!r} on are in use; set another `branch`")
    return f"refs/heads/{usable[0]}"


def _taken(name: str, refs: Sequence[Ref], heads: frozenset[str]) -> bool:
    own = f"refs/heads/{name}"
    for ref in refs:
        remote = ref.name.startswith("refs/remotes/")
        if remote and ref.name.split("/", 3)[-1] == name and not ref.by_flor:
            return True
        if not remote and ref.name == own and (ref.checked_out or not ref.by_flor):
            return True
        if not remote and (ref.name.startswith(own + "/") or own.startswith(ref.name + "/")):
            return True
    return own in heads


def checked_out(git: Git, common_dir: Path) -> frozenset[str]:
    """The branches that HEAD of any worktree names, born or not."""
    names = {current(git)}
    with suppress(OSError):
        for folder in (common_dir, *(common_dir / "worktrees").iterdir()):
            names.add(_named(folder / "HEAD"))
    return frozenset(name for name in names if name)


def current(git: Git) -> str | None:
    """The branch ref that HEAD names; None when it is detached."""
    assert git.git_dir is not None
    name = _named(git.git_dir / "HEAD")
    if name == "refs/heads/.invalid":  # the reftable format keeps HEAD elsewhere
        found = git.start("symbolic-ref", "-q", "HEAD").finish(ok=(0, 1))
        return found.decode(errors="surrogateescape").strip() or None
    return name


def _named(head: Path) -> str | None:
    with suppress(OSError):
        text = head.read_text(encoding="utf-8", errors="surrogateescape")
        if text.startswith("ref:"):
            return text[4:].strip()
    return None


@dataclass(frozen=True)
class Branch:
    """The branch `ref`, to read its tip and to add commits."""

    git: Git
    ref: str
    form: Format
    identity: tuple[str, str]

    @property
    def name(self) -> str:
        return self.ref.removeprefix("refs/heads/")

    def tip(self, batch: Batch) -> Commit | None:
        """The newest commit; None where the branch does not exist yet."""
        return read_commit(batch, self.ref)

    def origin(self, batch: Batch) -> Commit | None:
        """What a branch that does not exist yet should continue: the remotes' one, if any."""
        listed = self.git.run("for-each-ref", "--format=%(refname)", f"refs/remotes/*/{self.name}")
        names = listed.decode(errors="surrogateescape").split()
        commits = (read_commit(batch, name) for name in sorted(names, key=_origin_first))
        return next((commit for commit in commits if commit and commit.by_flor), None)

    def versions(self, batch: Batch, tip: Commit | None) -> Iterator[Known]:
        """The code of the tip, then the newest version commit before it."""
        seen = None
        if tip and (named := tip.trailers.get("Flor-Code")):
            commit = read_commit(batch, named)
            if commit and "Flor-Version" in commit.trailers:
                seen = commit.oid
                yield Known(commit.oid, commit.tree)
        for _ in range(LOOK_BACK):
            if tip is None:
                return
            if "Flor-Version" in tip.trailers:
                if tip.oid != seen:
                    yield Known(tip.oid, tip.tree)
                return
            tip = read_commit(batch, tip.parents[0]) if tip.parents else None

    def add(
        self,
        batch: Batch,
        make: Callable[[Commit | None], tuple[Sequence[Object], str, str] | str],
        *,
        first_parent: str | None = None,
        other_parents: Sequence[str] = (),
        level: int = 1,
    ) -> str:
        """Add a commit and return its id.

        `make` is given the tip and returns (objects to write, tree, message), or the id of a
        commit that makes a new one needless; after a lost race it is asked again.
        `first_parent` is the parent where the branch does not exist.
        """
        patience = Patience()
        written: set[str] = set()
        try:
            while True:
                tip = self.tip(batch)
                base = tip or self.origin(batch)
                made = make(base)
                if isinstance(made, str):
                    return made
                objects, tree, text = made
                first = base.oid if base else first_parent
                parents = [parent for parent in (first, *other_parents) if parent]
                commit = self.form.commit(tree, parents, self.identity, text)
                new = [item for item in (*objects, commit) if item.oid not in written]
                if new:
                    start_writing(self.git, self.form, new, level=level).finish()
                    written.update(item.oid for item in new)
                try:
                    self.advance(commit.oid, tip.oid if tip else None)
                    return commit.oid
                except LostRace as race:
                    patience.lost(race, tip)
        except TimedOut as late:
            raise patience.explained(late) from late

    def advance(self, new: str, old: str | None) -> None:
        """Set the ref to `new` if it is still `old` (None: if it does not exist).

        Raises LostRace if it is something else, or locked.
        """
        try:
            self.git.run("update-ref", self.ref, new, old or self.form.null)
        except TimedOut:
            raise
        except GitError as error:
            if re.search(LOST, str(error)):
                raise LostRace(self._trouble(str(error))) from error
            raise

    def _trouble(self, said: str) -> str:
        """Why the ref could not be set, and what to do."""
        found = LOCK.search(said)
        if found is None:
            return f"{self.ref} keeps changing or is locked ({said}); try again later"
        lock = Path(found[1])
        try:
            seconds = time.time() - lock.lstat().st_mtime
        except OSError:  # released just now
            return f"{self.ref} keeps being locked by {lock}; try again later"
        if seconds < STALE_SECONDS:
            return f"{self.ref} is locked by {lock}: another git is at work; try again later"
        return (
            f"{self.ref} is locked by {lock}, left {seconds / 60:,.0f} min ago by a git that was "
            "killed: remove it when no git is running"
        )


def _origin_first(ref: str) -> tuple[bool, str]:
    return not ref.startswith("refs/remotes/origin/"), ref


def read_commit(batch: Batch, name: str) -> Commit | None:
    found = batch.get(name)
    if found is None or found.kind != "commit":
        return None
    return parse_commit(found.oid, found.data)
