"""`flor doctor`: is everything in order, and if not, what to do."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flor.claim import is_dead
from flor.cli.terminal import clean
from flor.errors import FlorError, NoRepository

if TYPE_CHECKING:
    from flor.config import Settings

FREE_BYTES_WANTED = 1024**3


@dataclass(frozen=True)
class Finding:
    subject: str
    level: str  # ok, warning, problem
    text: str
    repair: str = ""


def doctor(settings: Settings, *, as_json: bool) -> int:
    """Print what was found; the exit code: 1 if something is broken."""
    found = [finding for check in CHECKS for finding in _guarded(check, settings)]
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in found], indent=1))
    else:
        colors = {"ok": "green", "warning": "yellow", "problem": "red"}
        for finding in found:
            level = click.style(f"{finding.level:<8}", fg=colors[finding.level])
            click.echo(f"{level} {finding.subject:<10} {clean(finding.text, keep='')}")
            if finding.repair:
                click.echo(f"{'':19} → {clean(finding.repair, keep='')}")
    return int(any(finding.level == "problem" for finding in found))


def _guarded(
    check: Callable[[Settings], Iterator[Finding]], settings: Settings
) -> Iterator[Finding]:
    name = check.__name__.strip("_")
    try:
        yield from check(settings)
    except (FlorError, OSError) as error:
        yield Finding(name, "problem", str(error))


def _project(settings: Settings) -> Iterator[Finding]:
    yield Finding("project", "ok", f"{settings.projid} in {settings.root}")


def _git(settings: Settings) -> Iterator[Finding]:
    from flor.git import open_repository

    if shutil.which("git") is None:
        yield Finding("git", "problem", "git is not on PATH", "install git; runs have no version")
        return
    version = subprocess.run(["git", "--version"], capture_output=True, text=True, check=False)
    yield Finding("git", "ok", version.stdout.strip())
    try:
        repository = open_repository(
            settings.root, settings.flor_dir, settings.branch, create=False
        )
    except NoRepository:
        yield Finding("branch", "ok", "no git repository here; the first run makes a private one")
        return
    kind = "flor's own repository" if repository.private else "the project's repository"
    branch = repository.ref.removeprefix("refs/heads/")
    count = sum(1 for _ in repository.journals())
    yield Finding("branch", "ok", f"{branch} in {kind}, {count:,} runs on it")
    if branch != settings.branch and not repository.private:
        text = f"a branch {settings.branch!r} of your own exists; versions go to {branch!r}"
        yield Finding("branch", "warning", text)


def _recording(settings: Settings) -> Iterator[Finding]:
    """Whether a run that starts now can be recorded."""
    flor_dir = settings.flor_dir
    needed = (flor_dir, settings.runs_dir, settings.objects_dir)
    for folder in (*needed, flor_dir / "unpublished", flor_dir / "tmp"):
        if os.path.lexists(folder) and not folder.is_dir():
            moved = f"mv {shlex.quote(str(folder))} {shlex.quote(f'{folder}.moved')}"
            text = f"{folder} is not a folder; runs cannot be recorded"
            yield Finding("recording", "problem", text, moved)
            return
    place = next(folder for folder in (*needed[1::-1], settings.root) if folder.is_dir())
    try:
        with tempfile.TemporaryDirectory(prefix=".flor-probe-", dir=place) as probe:
            (Path(probe) / "journal.jsonl").write_bytes(b"{}\n")
    except OSError as error:
        text = f"nothing can be written to {place}: {error.strerror}"
        yield Finding("recording", "problem", text, "make it writable; runs are not recorded")
        return
    if os.environ.get("FLOR_DISABLE", "").lower() in ("1", "true", "yes", "on"):
        yield Finding("recording", "warning", "FLOR_DISABLE turns it off here", "unset it")
        return
    yield Finding("recording", "ok", f"runs can be recorded in {settings.runs_dir}")


def _journals(settings: Settings) -> Iterator[Finding]:
    from flor.record.publish import journal_files

    listed = sorted(settings.runs_dir.iterdir()) if settings.runs_dir.is_dir() else []
    runs = [path for path in listed if path.is_dir()]  # a checked out branch has files there
    size, torn, empty, unreadable = 0, 0, [], []
    for run_dir in runs:
        files = [path for path in journal_files(run_dir) if path.exists()]
        if not files:
            empty.append(run_dir)
        for path in files:
            try:
                size += path.stat().st_size
                torn += _is_torn(path) and is_dead(run_dir)
            except OSError as error:
                unreadable.append(f"{path} ({error.strerror})")
    yield Finding("journals", "ok", f"{len(runs):,} runs, {size / 1024**2:,.1f} MiB")
    if unreadable:
        text = f"{len(unreadable)} journals cannot be read, such as {unreadable[0]}"
        yield Finding("journals", "problem", text, "mend the access to them; they are missing")
    if torn:
        text = f"{torn} journals end in half a line, which is skipped; the rest is read"
        yield Finding("journals", "warning", text)
    for run_dir in empty:
        yield Finding("journals", "warning", f"{run_dir} holds no journal", "remove the folder")
    waiting = settings.flor_dir / "unpublished"
    late = [path.name for path in waiting.iterdir()] if waiting.is_dir() else []
    late = [name for name in late if is_dead(settings.runs_dir / name)]
    if late:
        text = f"{len(late)} ended runs are not on the branch yet"
        yield Finding("journals", "warning", text, "flor sync")


def _is_torn(path: Path) -> bool:
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return False
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def _database(settings: Settings) -> Iterator[Finding]:
    from flor.store.catalog import count_runs
    from flor.store.ingest import grown
    from flor.store.project import opened

    with opened(settings) as project:
        db = project.db
        if db.dialect == "sqlite" and not settings.flor_dir.exists():
            yield Finding("database", "ok", "none yet; it comes with the first run")
            return
        yield Finding("database", "ok", f"{db.place}, {count_runs(db):,} runs")
        if db.dialect == "sqlite":
            if db.place != str(settings.sqlite_path):
                text = f"{settings.sqlite_path} cannot be written; every query reads all journals"
                yield Finding("database", "warning", text, f"make {settings.flor_dir} writable")
            answer = db.execute("pragma quick_check(1)")[0][0]
            if answer != "ok":
                repair = f"remove {settings.sqlite_path}; the next query fills it again"
                yield Finding("database", "problem", f"damaged: {answer}", repair)
        bad = db.execute(
            "select count(*), coalesce(sum(bad_lines), 0) from journals where bad_lines > 0"
        )
        count, lines = bad[0]
        if count:
            text = f"{lines} lines in {count} journals were torn, senseless or nested too deeply"
            yield Finding("journals", "warning", text)
        late = grown(settings, db, most=sys.maxsize)
        if late:
            text = f"{len(late)} runs were taken for dead and have written since, such as {late[0]}"
            yield Finding("journals", "warning", text, "flor sync --full")


def _disk(settings: Settings) -> Iterator[Finding]:
    place = settings.flor_dir if settings.flor_dir.exists() else settings.root
    free = shutil.disk_usage(place).free
    text = f"{free / 1024**3:,.1f} GiB free at {place}"
    if free < FREE_BYTES_WANTED:
        yield Finding("disk", "warning", text, "make room: runs go on without it, unrecorded")
    else:
        yield Finding("disk", "ok", text)


CHECKS = (_project, _git, _recording, _journals, _database, _disk)
