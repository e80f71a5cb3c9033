"""A project's database with everything in it that the journals hold by now."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flor import config
from flor.config import Settings
from flor.errors import GitError
from flor.git import Repository, open_repository
from flor.store.database import Database, open_database
from flor.store.ingest import ingest, ingest_branch, known_runs

CALLER = 4  # frames from a warning here to the user's call


GIT_SECONDS = 5.0  # a question waits no longer for a git that hangs


@dataclass(frozen=True)
class Project:
    settings: Settings
    db: Database
    shared: int = 0  # runs that were read from the branch just now


@contextmanager
def opened(settings: Settings | None = None, *, full: bool = False) -> Iterator[Project]:
    """The project (default: around the working directory), with all that there is by now.

    That is the runs in `.flor/runs` and those on the branch, here or fetched. Where there is
    neither, nothing is made.
    """
    settings = settings or config.load()
    repository = _repository(settings)
    tips = repository.tips() if repository is not None else []
    empty = not tips and not settings.database and not settings.flor_dir.exists()
    with open_database(settings, in_memory=empty) as db:
        report = ingest(settings, db, full=full)
        if report.unreadable:
            warnings.warn(_unreadable(settings, report.unreadable), stacklevel=CALLER)
        shared = _read_branch(db, settings, repository, tips) if repository is not None else 0
        yield Project(settings, db, shared)


def _repository(settings: Settings) -> Repository | None:
    try:
        return open_repository(
            *(settings.root, settings.flor_dir, settings.branch),
            create=False,
            seconds=GIT_SECONDS,
        )
    except GitError:
        return None  # the runs that are here are shown all the same; `flor doctor` tells why


def _read_branch(db: Database, settings: Settings, repository: Repository, tips: list[str]) -> int:
    """Read what came to the branch since the last time; the number of runs."""
    key = f"tips of {settings.projid}"
    found = db.execute("select value from meta where key = ?", (key,))
    before: list[str] = json.loads(found[0][0]) if found else []
    if tips == before:
        return 0
    report = ingest_branch(db, repository.journals(known_runs(db), before), settings.projid)
    with db.transaction():
        db.execute("delete from meta where key = ?", (key,))
        db.execute("insert into meta (key, value) values (?, ?)", (key, json.dumps(tips)))
    return report.runs


def _unreadable(settings: Settings, run_ids: tuple[str, ...]) -> str:
    count = "1 run" if len(run_ids) == 1 else f"{len(run_ids):,} runs"
    return (
        f"the journals of {count} cannot be read, such as {settings.runs_dir / run_ids[0]}; "
        "mend the access to them, until then they are missing here"
    )
