"""A project's database with everything in it that the journals hold by now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flor import config
from flor.config import Settings
from flor.store.database import Database, open_database
from flor.store.ingest import ingest


@dataclass(frozen=True)
class Project:
    settings: Settings
    db: Database


@contextmanager
def opened(settings: Settings | None = None, *, full: bool = False) -> Iterator[Project]:
    """The project (default: around the working directory), freshly ingested."""
    settings = settings or config.load()
    with open_database(settings) as db:
        ingest(settings, db, full=full)
        yield Project(settings, db)
