"""Sharing runs: the journals that the branches hold, and keeping up with the remotes."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from flor.errors import GitError
from flor.git.branch import Branch, LostRace, Patience, candidates, read_commit
from flor.git.objects import Commit, Object, message, trailers
from flor.git.process import Batch, Git

RUN_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]*")
PUSHES = 5  # rejected because somebody else pushed in between, before giving up
REJECTED = re.compile(r"rejected|fetch first|non-fast-forward|cannot lock ref|incorrect old value")


@dataclass(frozen=True)
class SyncReport:
    """What `sync` did; `ahead` is the number of commits that the remote does not have."""

    fetched: tuple[str, ...] = ()
    merged: bool = False
    pushed: bool = False
    ahead: int = 0
    unreachable: tuple[str, ...] = ()  # of several remotes, and why


def journal_path(run_id: str) -> str:
    return f".flor/runs/{run_id}.jsonl.gz"


def journals(
    git: Git, branch: str, known: Container[str], after: Sequence[str] = ()
) -> Iterator[tuple[str, bytes]]:
    """(run id, compressed journal) of all runs that the branches hold and that are not `known`.

    What the commits `after` lead to is passed over.
    """
    wanted = {
        run_id: f"{commit}:{journal_path(run_id)}"
        for commit, run_id in _run_commits(git, branch, after)
        if run_id not in known
    }
    if not wanted:
        return
    with Batch(git) as batch:
        found = batch.many(wanted.values())
        for run_id, blob in zip(wanted, found, strict=True):
            if blob is not None and blob.kind == "blob":
                yield run_id, blob.data


def branch_tips(git: Git, branch: str) -> list[str]:
    """The newest commits of the local and the remotes' branches."""
    places = ("refs/heads", "refs/remotes/*")
    patterns = [f"{place}/{name}" for place in places for name in candidates(branch)]
    refs = git.run("for-each-ref", "--format=%(objectname) %(refname)", *patterns)
    names = {branch_name.encode() for branch_name in candidates(branch)}
    tips = []
    for line in refs.splitlines():
        oid, _, ref = line.partition(b" ")
        depth = 3 if ref.startswith(b"refs/remotes/") else 2
        if ref.split(b"/", depth)[-1] in names:  # not `flor/x`, which the pattern finds too
            tips.append(oid.decode())
    return sorted(set(tips))


def _run_commits(git: Git, branch: str, after: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(commit, run id), newest first. A name that could lead out of a folder is passed over."""
    tips = branch_tips(git, branch)
    if not tips:
        return
    logged = git.run(
        *("log", "-z", "--stdin", "--no-show-signature", "--no-notes", "--encoding=UTF-8"),
        *("--basic-regexp", "--grep=^Flor-Run: ", "--format=%H%n%B"),
        "--ignore-missing",
        data="\n".join([*tips, *(f"^{oid}" for oid in after)]).encode() + b"\n",
    )
    for commit in logged.split(b"\0"):
        oid, _, text = commit.partition(b"\n")
        run_id = trailers(text).get("Flor-Run", "")
        if RUN_ID.fullmatch(run_id):
            yield oid.decode(), run_id


def sync(branch: Branch, remote: str | None, *, push: bool) -> SyncReport:
    """Fetch flor's branch, join it with the local one, and push if asked."""
    git = branch.git
    remotes = git.run("remote").decode(errors="surrogateescape").split()
    if remote is not None and remote not in remotes:
        known = ", ".join(remotes) or "none"
        raise GitError(
            f"no remote {remote!r} here (there are: {known}); `git remote add` makes one"
        )
    target = _push_target(remotes, remote, push)
    fetched, unreachable = [], []
    for name in remotes:
        if remote not in (None, name):
            continue
        try:
            if fetch(git, name, branch.name):
                fetched.append(name)
        except GitError as error:
            if remote is not None or len(remotes) == 1:
                raise
            unreachable.append(f"{name}: {error}")
    merges = [absorb(branch, name) for name in fetched]
    merged = any(merges)
    pushed = False
    if push and target is not None and _exists(branch):
        merged = _push(branch, target) or merged
        pushed = True
    ahead = 0 if pushed else _ahead(branch, target)
    return SyncReport(tuple(fetched), merged, pushed, ahead, tuple(unreachable))


def _push_target(remotes: Sequence[str], remote: str | None, push: bool) -> str | None:
    if remote is not None or not push:
        return remote or ("origin" if "origin" in remotes else next(iter(remotes), None))
    if not remotes:
        raise GitError("there is no remote to push to; add one: git remote add origin URL")
    if "origin" not in remotes and len(remotes) > 1:
        raise GitError(f"which remote to push to? Name one of: {', '.join(remotes)}")
    return "origin" if "origin" in remotes else remotes[0]


def fetch(git: Git, remote: str, name: str) -> bool:
    """Fetch the branch `name` to its remote-tracking ref, and nothing else.

    False if the remote has no such branch.
    """
    refspec = f"+refs/heads/{name}:refs/remotes/{remote}/{name}"
    quiet = ["--quiet", "--no-tags", "--no-recurse-submodules", "--no-prune", "--refmap="]
    quiet += ["--no-write-commit-graph"]
    for option in (["--no-write-fetch-head"], []):  # git before 2.29 always writes FETCH_HEAD
        try:
            git.run("fetch", *quiet, *option, remote, refspec, online=True)
            return True
        except GitError as error:
            if "couldn't find remote ref" in str(error).lower():
                return False
            if not (option and "unknown option" in str(error)):
                raise GitError(
                    f"cannot fetch {name} from the remote {remote!r}: {error}"
                ) from error
    return False


def absorb(branch: Branch, remote: str) -> bool:
    """Make the local branch contain the remote's. True if that took a merge commit."""
    patience = Patience()
    with Batch(branch.git) as batch:
        while True:
            mine = branch.tip(batch)
            theirs = read_commit(batch, f"refs/remotes/{remote}/{branch.name}")
            if theirs is None or not theirs.by_flor or (mine and _contains(branch, mine, theirs)):
                return False
            try:
                if mine is None or _contains(branch, theirs, mine):
                    branch.advance(theirs.oid, mine.oid if mine else None)
                    return False
                _merge(branch, batch, mine, theirs, remote)
            except LostRace as race:
                patience.lost(race, mine)
                continue
            return True


def _merge(branch: Branch, batch: Batch, mine: Commit, theirs: Commit, remote: str) -> None:
    """Join both histories. Journals hang on their own commits, so any one tree will do."""
    newer = max(mine, theirs, key=lambda commit: commit.seconds)
    version = next(branch.versions(batch, newer), None)
    named = {"Flor_Merge": "1"} | ({"Flor_Code": version.commit} if version else {})

    def make(tip: Commit | None) -> tuple[Sequence[Object], str, str]:
        if tip is None or tip.oid != mine.oid:
            raise LostRace(f"{branch.ref} changed")
        return (), newer.tree, message(f"Runs of {remote}", **named)

    branch.add(batch, make, other_parents=[theirs.oid])


def _push(branch: Branch, remote: str) -> bool:
    """Push the branch. True if a merge commit was needed because somebody else pushed."""
    merged = False
    quiet = ["--quiet", "--no-verify", "--no-follow-tags", "--recurse-submodules=no"]
    for attempt in range(PUSHES):
        try:
            branch.git.run("push", *quiet, remote, f"{branch.ref}:{branch.ref}", online=True)
            return merged
        except GitError as error:
            if not REJECTED.search(str(error)) or attempt == PUSHES - 1:
                raise GitError(f"cannot push {branch.name} to {remote!r}: {error}") from error
        fetch(branch.git, remote, branch.name)
        merged = absorb(branch, remote) or merged
    return merged


def _exists(branch: Branch) -> bool:
    return branch.git.start("show-ref", "--verify", "--quiet", branch.ref).code() == 0


def _contains(branch: Branch, newer: Commit, older: Commit) -> bool:
    ends = ("--is-ancestor", older.oid, newer.oid)
    return branch.git.start("merge-base", *ends).code() == 0


def _ahead(branch: Branch, remote: str | None) -> int:
    """The number of local commits that the remote's branch, as last fetched, does not have."""
    if remote is None or not _exists(branch):
        return 0
    tracking = f"refs/remotes/{remote}/{branch.name}"
    known = branch.git.start("show-ref", "--verify", "--quiet", tracking).code() == 0
    without: Iterable[str] = ("--not", tracking) if known else ()
    return int(branch.git.run("rev-list", "--count", branch.ref, *without))
