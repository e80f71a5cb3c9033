"""`flor objects`: what is stored, here and in the bucket, and moving it between them."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import click

from flor.cli.listing import size
from flor.cli.terminal import console, echo, styled
from flor.errors import BucketError, ConfigError
from flor.objects import NOT_REGULAR, open_object
from flor.store.bucket import bucket_of
from flor.store.catalog import find_run
from flor.store.project import opened
from flor.store.sweeping import GB
from flor.store.transfer import Moved, Progress, groups_of, pull, push, to_pull, to_push
from flor.store.usage import RunUsage, Usage, read_usage

if TYPE_CHECKING:
    from pathlib import Path

    from flor.config import Settings

LINE_SECONDS = 10.0  # between two lines of progress, where there is no terminal
BLOCK_BYTES = 4 * 1024 * 1024
NAMED = 3  # of the checkpoints that a damaged object belongs to


# --- what is stored -------------------------------------------------------------------------------


def objects(settings: Settings, name: str | None, *, verify: bool, as_json: bool) -> int:
    """Print what is stored, by run; the exit code: 1 if an object turned out to be damaged."""
    usage, chosen = _usage(settings, name)
    runs = [run for run in chosen if run.checkpoints or run.values]
    among = usage.local.keys() | usage.irregular.keys()
    if name is not None:
        among &= frozenset().union(*(run.objects for run in runs))
    damaged = _damaged(usage, sorted(among)) if verify else []
    if as_json:
        found = {"runs": [_run_json(usage, run) for run in runs], "totals": _totals(usage)}
        if verify:
            found["damaged"] = [
                {"path": str(_path(usage, digest)), "needed_by": _needed_by(usage, digest)}
                for digest in damaged
            ]
        click.echo(json.dumps(found, indent=1))
    else:
        if runs:
            _print_runs(usage, runs)
        elif name is None:
            echo("no run needs any objects yet")
        for run in chosen if name is not None and not runs else ():
            echo(f"run {run.run_id} needs no objects; in all of the project:\n")
        _print_totals(usage)
        if verify:
            _print_damaged(usage, damaged, len(among))
    return int(bool(damaged))


def _usage(settings: Settings, name: str | None) -> tuple[Usage, list[RunUsage]]:
    """All that is known, and the runs that `name` names: one, or all of the project."""
    with opened(settings) as project:
        run_id = None if name is None else find_run(project.db, name).run_id
        usage = read_usage(project, bucket_of(settings))
    return usage, [run for run in usage.runs if run.ours and run_id in (None, run.run_id)]


def _run_json(usage: Usage, run: RunUsage) -> dict[str, Any]:
    sizes = {digest: usage.size(digest) for digest in run.objects}
    remote = usage.remote
    return {
        "run_id": run.run_id,
        "filename": run.filename,
        "checkpoints": len(run.there),
        "recorded": len(run.checkpoints),
        "incomplete": sum(
            any(sizes[digest] is None for digest in item.objects or ()) for item in run.there
        ),
        "bytes": sum(filter(None, sizes.values())),
        "own_bytes": sum(size or 0 for d, size in sizes.items() if len(usage.users[d]) == 1),
        "local_bytes": sum(size or 0 for d, size in sizes.items() if d in usage.local),
        "bucket_bytes": None if remote is None else sum(remote.get(d, 0) for d in sizes),
        "missing": sum(size is None for size in sizes.values()),
    }


def _totals(usage: Usage) -> dict[str, Any]:
    needed = {digest for run in usage.runs for digest in run.objects}
    stored = sum(usage.size(digest) or 0 for digest in needed)
    logical = sum(run.logical_bytes for run in usage.runs)
    orphans = usage.orphans
    return {
        "local_bytes": usage.local_bytes,
        "limit_bytes": int(usage.settings.objects_limit_gb * GB),
        "stored_bytes": stored,
        "logical_bytes": logical,
        "saved_bytes": max(0, logical - stored),
        "orphans": len(orphans),
        "orphan_bytes": sum(usage.local[digest].size_bytes for digest in orphans),
        "unfinished_bytes": sum(item.size_bytes for item in usage.partials),
        "bucket": usage.settings.bucket or None,
        "bucket_bytes": None if usage.remote is None else sum(usage.remote.values()),
        "trouble": usage.trouble,
        "pins": [{"path": str(pin.path), "why": pin.why} for pin in usage.pins],
        "doubts": list(usage.doubts),
    }


def _print_runs(usage: Usage, runs: list[RunUsage]) -> None:
    columns = ["run", "kept", "needs", "only it", "here", "bucket"]
    table = table_of(*columns[: None if usage.settings.bucket else -1], right=columns[1:])
    for run in runs:
        facts = _run_json(usage, run)
        kept = f"{facts['checkpoints']}/{facts['recorded']}" if facts["recorded"] else ""
        if facts["incomplete"]:
            kept += f", {facts['incomplete']} incomplete"
        sizes = [size(facts[name]) for name in ("bytes", "own_bytes", "local_bytes")]
        if usage.settings.bucket:
            sizes.append("?" if facts["bucket_bytes"] is None else size(facts["bucket_bytes"]))
        table.add_row(styled(run.run_id), kept, *sizes)
    console().print(table)
    echo()


def _print_totals(usage: Usage) -> None:
    totals = _totals(usage)
    limit = f"{size(totals['local_bytes'])} of {size(totals['limit_bytes'])}"
    lines = [("here", f"{limit} in {usage.settings.objects_dir}")]
    if usage.settings.bucket:
        held = "?" if usage.remote is None else size(totals["bucket_bytes"])
        lines.append(("bucket", f"{held} in {usage.settings.bucket}"))
    else:
        lines.append(("bucket", "none is set; over the limit, checkpoints are thinned"))
    if totals["saved_bytes"]:
        shared = (
            f"{size(totals['stored_bytes'])} hold what would be {size(totals['logical_bytes'])}"
        )
        lines.append(("sharing", f"{shared} if nothing were shared"))
    if totals["orphans"] or usage.partials:
        idle = size(totals["orphan_bytes"] + totals["unfinished_bytes"])
        files = totals["orphans"] + len(usage.partials)
        lines.append(("orphans", f"{idle} in {count(files, 'file')} that nobody needs: flor gc"))
    lines += [("pinned", f"{pin.why} ({pin.path.name})") for pin in usage.pins]
    for name, text in lines:
        echo(f"{name:<9} {text}")
    for trouble in filter(None, (usage.trouble, *usage.doubts)):
        echo(f"flor: {trouble}", err=True)
    for path in usage.irregular.values():
        echo(f"flor: {path} is {NOT_REGULAR}, and counts as missing; remove it", err=True)


def _damaged(usage: Usage, digests: list[str]) -> list[str]:
    """Those whose content is not what their name says, or which are no files."""
    progress = progress_shown()
    sizes = [usage.local[digest].size_bytes for digest in digests if digest in usage.local]
    progress.begin("checked", sum(sizes))
    found = []
    try:
        for digest in digests:
            hasher = blake2b(digest_size=32)
            try:
                with open_object(_path(usage, digest)) as file:
                    while block := file.read(BLOCK_BYTES):
                        hasher.update(block)
                        progress.advance(len(block))
            except FileNotFoundError:
                continue  # it was removed just now
            except OSError:
                found.append(digest)  # a disk that fails, or no regular file
                continue
            if hasher.hexdigest() != digest:
                found.append(digest)
    finally:
        progress.end()
    return found


def _path(usage: Usage, digest: str) -> Path:
    found = usage.irregular.get(digest)
    return usage.local[digest].path if found is None else found


def _print_damaged(usage: Usage, damaged: list[str], checked: int) -> None:
    echo(f"verified  {count(checked)}, {len(damaged)} damaged")
    for digest in damaged:
        needed_by = _needed_by(usage, digest)
        more = f" and {len(needed_by) - NAMED} more" if len(needed_by) > NAMED else ""
        path = _path(usage, digest)
        echo(f"damaged   {path}: {', '.join(needed_by[:NAMED]) or 'nobody needs it'}{more}")
        in_bucket = (usage.remote or {}).get(digest) is not None
        source = "it comes back from the bucket" if in_bucket else "copy it from where it is intact"
        echo(f"          → remove it; {source if needed_by else 'nothing is lost'}")


def _needed_by(usage: Usage, digest: str) -> list[str]:
    found = []
    for run in usage.runs:
        for item in run.there:
            if digest in (item.objects or ()):
                found.append(f"checkpoint {item.number} of run {run.run_id}")
        if digest in run.values:
            found.append(f"a logged value of run {run.run_id}")
    return found


# --- to the bucket and back -----------------------------------------------------------------------


def push_objects(settings: Settings, name: str | None, *, dry_run: bool) -> int:
    """Upload what a run needs, or all runs; the exit code: 1 if something could not go."""
    return _transfer(settings, name, up=True, dry_run=dry_run)


def pull_objects(settings: Settings, name: str, *, dry_run: bool) -> int:
    """Download what a run needs; the exit code: 1 if something is not to be had."""
    return _transfer(settings, name, up=False, dry_run=dry_run)


def _transfer(settings: Settings, name: str | None, *, up: bool, dry_run: bool) -> int:
    bucket = bucket_of(settings)
    if bucket is None:
        raise ConfigError('no bucket is set: write bucket = "s3://name/prefix" into flor.toml')
    usage, runs = _usage(settings, name)
    if usage.remote is None:
        raise BucketError(usage.trouble)
    if dry_run:
        going = to_push(usage, groups_of(runs)) if up else to_pull(usage, runs)
        what = "upload" if up else "download"
        echo(f"would {what} {count(len(going))}, {size(sum(going.values()))}")
        return 0
    if up:
        moved = push(usage, bucket, groups_of(runs), progress_shown())
    else:
        moved = pull(usage, bucket, runs, progress_shown())
    what = "uploaded" if up else "downloaded"
    echo(f"{what} {count(moved.objects)}, {size(moved.size_bytes)}; {moved.already:,} were there")
    return _report(moved, usage)


def _report(moved: Moved, usage: Usage) -> int:
    if moved.missing:
        names = ", ".join(f"{digest[:12]}…" for digest in sorted(moved.missing)[:NAMED])
        echo(
            f"flor: {count(len(moved.missing))} are neither here nor in "
            f"{usage.settings.bucket}, such as {names}; push them from the machine that has them",
            err=True,
        )
    for failure in moved.failures:
        echo(f"flor: {failure}", err=True)
    return int(bool(moved.missing or moved.failures))


# --- progress -------------------------------------------------------------------------------------


def progress_shown() -> Progress:
    return Bar() if sys.stderr.isatty() else Lines()


class Bar:
    """A bar on the terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
        from rich.progress import Progress as RichProgress

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
        self._bar = RichProgress(
            *columns, TransferSpeedColumn(), console=Console(stderr=True), transient=True
        )
        self._task: Any = None

    def begin(self, what: str, size_bytes: int) -> None:
        self._task = self._bar.add_task(what, total=size_bytes)
        self._bar.start()

    def advance(self, size_bytes: int) -> None:
        self._bar.advance(self._task, size_bytes)

    def end(self) -> None:
        self._bar.stop()


class Lines:
    """A line now and then, for a pipe or a log."""

    def begin(self, what: str, size_bytes: int) -> None:
        self._what, self._size_bytes, self._done = what, size_bytes, 0
        self._said = time.monotonic()
        self._lock = threading.Lock()

    def advance(self, size_bytes: int) -> None:
        with self._lock:
            self._done += size_bytes
            if time.monotonic() - self._said < LINE_SECONDS:
                return
            self._said = time.monotonic()
        echo(f"{self._what} {size(self._done)} of {size(self._size_bytes)}", err=True)

    def end(self) -> None: ...


def count(number: int, noun: str = "object") -> str:
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}s"


def table_of(*names: str, right: Iterable[str]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in names:
        justify: Any = "right" if name in right else "left"
        table.add_column(name, justify=justify, overflow="fold")
    return table
