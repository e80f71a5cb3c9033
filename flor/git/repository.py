"""The repository that versions a project: the user's own, or a private one in `.flor/`."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flor.errors import GitError
from flor.git import branch as branches
from flor.git import reading, sharing
from flor.git.branch import Branch, read_commit
from flor.git.objects import TREE_MODE, Commit, Format, Object, message
from flor.git.process import UNLIMITED, Batch, Deadline, Git, TimedOut
from flor.git.selection import Limits, is_source
from flor.git.sharing import RUN_ID, SyncReport, journal_path
from flor.git.worktree import Code, WorkTree
from flor.model import Version

NOBODY = ("flor", "flor@localhost")
PARTIAL_SECONDS = 2.0  # for the essential files alone, where the whole tree took too long


@dataclass(frozen=True)
class Repository:
    """Versions of the working tree `root`, on flor's own branch `ref`.

    HEAD, index, working tree, stash, hooks and configuration are the user's and stay as they are.
    """

    root: Path
    git_dir: Path  # absolute; of the user's repository, or <flor_dir>/repo.git
    private: bool
    ref: str  # "refs/heads/flor", or a fallback where that is the user's own
    flor_dir: Path = field(repr=False)
    common_dir: Path = field(repr=False)  # what linked worktrees share
    branch: str = "flor"  # as it is set; `ref` may be a fallback
    form: Format = field(default=Format(), repr=False)
    identity: tuple[str, str] = field(default=NOBODY, repr=False)
    executable_bit: bool = field(default=True, repr=False)

    def snapshot(
        self,
        *,
        file_limit: int,
        tree_limit: int,
        seconds: float,
        essential: Sequence[Path] = (),
    ) -> Version:
        """The code in the working tree now, as a version; the newest one if that is the same.

        `file_limit` and `tree_limit` are in bytes and count what differs from the user's index.
        Untracked files whose names are those of secrets stay out, unless they are `essential`.
        After `seconds`, a partial version of just the `essential` files is made instead, within
        two more. Raises GitError.
        """
        first = [path for item in essential if (path := self._inside(item)) is not None]
        limits = Limits(file_limit, tree_limit, frozenset(first))
        try:
            git = self._git(Deadline(seconds))
            return self._version(git, self._worktree(git).code(limits), first)
        except TimedOut:
            git = self._git(Deadline(PARTIAL_SECONDS, spent=seconds))
            code = self._worktree(git).only(first, limits)
            return self._version(git, code, first, partial=True)

    def attach_journal(
        self,
        version: Version | None,
        run_id: str,
        payload: bytes,
        subject: str,
        *,
        seconds: float | None = None,
    ) -> str:
        """Add a commit of the version's code and the run's compressed journal; return its id.

        Without a version, or where its code is no longer in the repository, the commit holds the
        journal alone. Raises GitError, also when git does not answer within `seconds`.
        """
        if not RUN_ID.fullmatch(run_id):
            raise GitError(f"{run_id!r} is no run id")
        git = self._git(Deadline(seconds))
        branch = self._branch(git)
        with Batch(git) as batch:
            found = batch.get(version.tree) if version else None
            code = found.data if found and found.kind == "tree" else b""
            commit = read_commit(batch, version.commit) if version else None
            objects = self._with_journal(code, run_id, payload)
            named = {"Flor_Run": run_id} | ({"Flor_Code": commit.oid} if commit else {})
            text = message(subject, **named)
            return branch.add(
                batch,
                lambda _tip: (objects, objects[-1].oid, text),
                first_parent=commit.oid if commit else None,
                level=0,  # the journal is compressed already
            )

    def journals(
        self, known: Container[str] = (), after: Sequence[str] = ()
    ) -> Iterator[tuple[str, bytes]]:
        """(run id, compressed journal) of the runs that the local and the remotes' branches hold.

        Each run comes once, newest first; those in `known`, and those that earlier `tips` led to,
        are passed over.
        """
        return sharing.journals(self._git(), self.branch, known, after)

    def tips(self) -> list[str]:
        """The newest commits of those branches; the same as long as nothing came."""
        return sharing.branch_tips(self._git(), self.branch)

    def files(self, commit: str) -> dict[str, str]:
        """Blob id of each path of a version."""
        return reading.files(self._git(), commit)

    def read(self, commit: str, path: str) -> bytes:
        """The bytes of one of a version's files."""
        return reading.read(self._git(), commit, path)

    def diff(self, old: str, new: str, *, color: bool = False, stat: bool = False) -> str:
        """How the code of two commits or trees differs, as git prints it."""
        return reading.diff(self._git(), old, new, color=color, stat=stat)

    def checkout(self, commit: str, into: Path) -> None:
        """Write a version's files into the empty folder `into`, byte for byte as recorded."""
        reading.checkout(self._git(), commit, into)

    def sync(self, remote: str | None = None, *, push: bool = False) -> SyncReport:
        """Fetch flor's branch from one or all remotes and join it with the local one.

        Where both have new runs, the local branch gets a merge commit, so that pushing it is a
        fast-forward. Raises GitError.
        """
        return sharing.sync(self._branch(self._git()), remote, push=push)

    def _git(self, deadline: Deadline = UNLIMITED) -> Git:
        return Git(self.root, self.git_dir, deadline)

    def _worktree(self, git: Git) -> WorkTree:
        index = None if self.private else self.git_dir / "index"
        return WorkTree(git, self.flor_dir, self.form, index, self.executable_bit)

    def _branch(self, git: Git) -> Branch:
        """The branch to write to: chosen anew if the user has checked it out since."""
        ref = self.ref
        heads = branches.checked_out(git, self.common_dir)
        if ref in heads:
            refs = branches.parse_listing(branches.start_listing(git, self.branch).finish())
            ref = branches.choose(self.branch, refs, heads)
        return Branch(git, ref, self.form, self.identity)

    def _inside(self, path: Path) -> bytes | None:
        """`path` relative to the root as git names it; None if it is elsewhere."""
        full = self.root / path
        inside = os.path.relpath(full.parent.resolve() / full.name, self.root.resolve())
        return None if inside.startswith(os.pardir) else os.fsencode(inside)

    def _version(
        self, git: Git, code: Code, first: Sequence[bytes], *, partial: bool = False
    ) -> Version:
        with Batch(git) as batch:
            head = None if self.private else read_commit(batch, "HEAD")
            branch = self._branch(git)

            def make(tip: Commit | None) -> tuple[Sequence[Object], str, str] | str:
                known = list(branch.versions(batch, tip))
                for version in known:
                    if version.tree == code.tree:
                        return version.commit
                subject = "First version"
                if known:
                    subject = _subject(git, known[0].tree, code.tree, first)
                return (), code.tree, message(subject, Flor_Version="1")

            commit = branch.add(batch, make)
        user = None if self.private else branches.current(git)
        return Version(
            commit=commit,
            tree=code.tree,
            left_out=code.left_out,
            partial=partial,
            user_branch=user.removeprefix("refs/heads/") if user else None,
            user_commit=head.oid if head else None,
            user_dirty=not self.private and (head is None or head.tree != code.tree),
        )

    def _with_journal(self, code: bytes, run_id: str, payload: bytes) -> list[Object]:
        """The journal and the trees down to it; the last one is the root."""
        objects = [self.form.object("blob", payload)]
        mode = b"100644"
        *folders, name = journal_path(run_id).encode().split(b"/")
        for folder in reversed(folders):
            objects.append(self.form.tree([(mode, name, objects[-1].oid)]))
            mode, name = TREE_MODE, folder
        own = [entry for entry in self.form.entries(code) if entry[1] != name]
        objects.append(self.form.tree([*own, (mode, name, objects[-1].oid)]))
        return objects


def _subject(git: Git, old: str, new: str, first: Sequence[bytes]) -> str:
    """What changed, in a line: "train.py and 2 more changed"."""
    args = ("diff-tree", "-r", "-z", "--no-renames", "--name-only", old, new)
    paths = git.run(*args).split(b"\0")[:-1]
    if not paths:
        return "Same code"
    path = min(paths, key=lambda path: (path not in first, not is_source(path), path))
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{path.decode(errors='replace')}{more} changed"


def head(root: Path) -> tuple[str | None, str | None]:
    """(branch, commit) of the user's repository around `root`; None for what there is not."""
    child = Git(root).start("rev-parse", "--absolute-git-dir", "HEAD")
    lines = os.fsdecode(child.finish(ok=(0, 128))).splitlines()
    if not lines:
        return None, None
    ref = branches.current(Git(root, Path(lines[0])))
    commit = lines[1] if len(lines) > 1 and lines[1] != "HEAD" else None
    return (ref.removeprefix("refs/heads/") if ref else None), commit
