"""Finding the repository that a project is in, or making a private one for it."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path

from flor.errors import GitError, NoRepository
from flor.git import branch as branches
from flor.git.objects import Format
from flor.git.process import Deadline, Git
from flor.git.repository import NOBODY, Repository
from flor.git.worktree import prepare

QUESTIONS = (
    "--absolute-git-dir",
    "--git-common-dir",
    "--is-bare-repository",
    "--show-object-format",
    "--show-toplevel",
)
CONFIGURED = r"^(user\.(name|email)|core\.filemode)$"


def open_repository(
    root: Path,
    flor_dir: Path,
    branch: str = "flor",
    *,
    create: bool = True,
    seconds: float | None = None,
) -> Repository:
    """The user's repository that contains `root`, else a private one in `flor_dir`.

    A project that the repository around it ignores counts as outside of it. The private one is
    made if `create`. Raises GitError: git is missing, refuses the repository, cannot read it, or
    did not answer within `seconds`, if there are any.
    """
    deadline = Deadline(seconds)
    root, flor_dir = root.absolute(), flor_dir.absolute()
    branches.candidates(branch)
    opened = _open(Git(root, None, deadline), flor_dir, branch)
    if opened is not None and not _ignored(opened, root, deadline):
        return opened
    private = Git(root, flor_dir / "repo.git", deadline)
    if not (flor_dir / "repo.git" / "HEAD").is_file():
        if not create:
            raise NoRepository(f"{root} is in no git repository and flor has made none for it yet")
        _create(private, flor_dir)
    opened = _open(private, flor_dir, branch)
    assert opened is not None  # it would have raised
    return opened


def _open(git: Git, flor_dir: Path, branch: str) -> Repository | None:
    """The repository that git finds; None if there is none. Three processes, side by side."""
    with ExitStack() as children:
        asking = children.enter_context(git.start("rev-parse", *QUESTIONS))
        listing = children.enter_context(branches.start_listing(git, branch))
        reading = git.start("config", "-z", "--get-regexp", CONFIGURED)
        configured = children.enter_context(reading)
        answers = os.fsdecode(asking.finish(ok=(0, 128))).splitlines()
        if asking.process.returncode != 0 or len(answers) != len(QUESTIONS):
            _explain(git, asking.said, answers)
            return None
        refs = branches.parse_listing(listing.finish())
        settings = _settings(configured.finish(ok=(0, 1)))
    git_dir, common, _bare, algorithm, top = answers
    found = Git(Path(top), Path(git_dir), git.deadline)
    common_dir = (git.root / common).resolve()
    heads = branches.checked_out(found, common_dir)
    return Repository(
        root=found.root,
        git_dir=Path(git_dir),
        private=git.git_dir is not None,
        ref=branches.choose(branch, refs, heads),
        flor_dir=flor_dir,
        common_dir=common_dir,
        branch=branch,
        form=Format("sha256" if algorithm == "sha256" else "sha1"),
        identity=(settings.get("user.name", NOBODY[0]), settings.get("user.email", NOBODY[1])),
        executable_bit=settings.get("core.filemode", "true").lower() not in ("false", "no", "0"),
    )


def _explain(git: Git, said: str, answers: list[str]) -> None:
    """Raise GitError unless there simply is no repository around `git.root`."""
    where = git.git_dir or git.root
    if "dubious ownership" in said or "unsafe repository" in said:
        raise GitError(
            f"git refuses the repository around {where}, because another user owns it; if you "
            f"trust it: git config --global --add safe.directory {git.root}"
        )
    if len(answers) > 2 and answers[2] == "true":
        raise GitError(f"{where} is in a bare repository, which has no code to version")
    if answers:
        raise GitError(f"{where} is inside a git folder; start flor in the working tree ({said})")
    if "not a git repository" not in said or git.git_dir is not None:
        raise GitError(f"git cannot read the repository at {where}: {said}")
    for folder in (git.root, *git.root.parents):
        if os.path.lexists(folder / ".git"):
            raise GitError(f"{folder / '.git'} is damaged: {said}; mend or remove it")


def _settings(listed: bytes) -> dict[str, str]:
    pairs = (item.partition(b"\n") for item in listed.split(b"\0") if item)
    return {name.decode().lower(): value.decode(errors="replace") for name, _, value in pairs}


def _ignored(repository: Repository, root: Path, deadline: Deadline) -> bool:
    """Whether the repository around `root` leaves it alone, like one of a whole home folder."""
    if repository.root == root or repository.root.samefile(root):
        return False
    inside = os.path.relpath(root.resolve(), repository.root.resolve())
    git = Git(repository.root, repository.git_dir, deadline)
    return git.start("check-ignore", "-q", "--", inside).code() == 0


def _create(private: Git, flor_dir: Path) -> None:
    """Make the private repository; of several processes that do so at once, the first wins."""
    final = flor_dir / "repo.git"
    part = flor_dir / "tmp" / f"repo-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        prepare(flor_dir / "tmp", flor_dir)
        Git(private.root, None, private.deadline).run(
            *("init", "--quiet", "--bare", "--template=", os.fsencode(part)),
            settings=["init.defaultBranch=unused"],  # flor's own must not count as checked out
        )
        part.rename(final)
    except OSError as error:
        if not (final / "HEAD").is_file():
            raise GitError(
                f"cannot make a repository at {final}: {error}; remove what is there or mend its "
                "access"
            ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
