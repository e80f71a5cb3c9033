"""A project's database with everything in it that the journals hold by now."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flor import config
from flor.config import Settings
from flor.store.database import Database, open_database
from flor.store.ingest import ingest

CALLER = 4  # frames from a warning here to the user's call


@dataclass(frozen=True)
class Project:
    settings: Settings
    db: Database


@contextmanager
def opened(settings: Settings | None = None, *, full: bool = False) -> Iterator[Project]:
    """The project (default: around the working directory), freshly ingested."""
    settings = settings or config.load()
    with open_database(settings) as db:
        report = ingest(settings, db, full=full)
        if report.unreadable:
            warnings.warn(_unreadable(settings, report.unreadable), stacklevel=CALLER)
        yield Project(settings, db)


def _unreadable(settings: Settings, run_ids: tuple[str, ...]) -> str:
    count = "1 run" if len(run_ids) == 1 else f"{len(run_ids):,} runs"
    return (
        f"the journals of {count} cannot be read, such as {settings.runs_dir / run_ids[0]}; "
        "mend the access to them, until then they are missing here"
    )
