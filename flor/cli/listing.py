"""`flor runs`, `flor show`, `flor diff`."""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from flor.cli.terminal import clean, colored_diff, console, echo, line, styled, write_exact
from flor.errors import GitError, UnknownRun
from flor.store import catalog
from flor.store.project import Project, opened

if TYPE_CHECKING:
    from flor.config import Settings
    from flor.git import Repository

BARS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 32
LISTED_VALUES = 8
COLORS = {"finished": "green", "running": "cyan", "failed": "red", "killed": "yellow"}


def runs(settings: Settings, limit: int | None, *, as_json: bool) -> None:
    with opened(settings) as project:
        found = catalog.list_runs(project.db, limit)
        values = catalog.metrics(project.db, found)
        total = catalog.count_runs(project.db)
    if as_json:
        rows = [_run_json(run, values[run.run_id]) for run in found]
        click.echo(json.dumps(rows, indent=1))
    elif not found:
        echo(
            f"no runs yet in {settings.root}\n"
            'add `import flor` and `flor.log("loss", loss)` to a script, and run it as always'
        )
    else:
        _print_runs(found, values)
        if len(found) < total:
            echo(f"the newest {len(found)} of {total:,} runs; --all lists all of them")


def show(settings: Settings, text: str, *, as_json: bool, code: bool) -> None:
    with opened(settings) as project:
        run = catalog.find_run(project.db, text)
        if code:
            _print_script(settings, run)
            return
        values = catalog.metrics(project.db, [run])[run.run_id]
        if as_json:
            details = {
                "environment": run.environment,
                "loops": catalog.loops(project.db, run),
                "data": catalog.data_files(project.db, run),
                "notes": catalog.notes(project.db, run),
            }
            click.echo(json.dumps(_run_json(run, values) | details, indent=1))
            return
        _print_run(project, run, values)


def diff(settings: Settings, old: str, new: str, *, stat: bool) -> None:
    with opened(settings) as project:
        runs = [catalog.find_run(project.db, text) for text in (old, new)]
    for run in runs:
        if run.commit_id is None:
            raise UnknownRun(f"run {run.run_id} has no code version; `flor show` may say why")
    before, after = (run.commit_id for run in runs)
    assert before is not None
    assert after is not None
    text = _repository(settings).diff(before, after, color=False, stat=stat)
    if not text:
        echo(f"the code of {runs[0].run_id} and {runs[1].run_id} is the same")
    elif stat or not sys.stdout.isatty():
        write_exact(text)
    else:
        click.echo(colored_diff(text), nl=False)


def _print_runs(found: Sequence[catalog.RunRow], values: dict[str, list[catalog.Metric]]) -> None:
    table = _table("run", "started", "script", "status", "took", "arguments", "newest values")
    for run in found:
        arguments = ", ".join(_pair(m) for m in values[run.run_id] if m.is_arg)
        metrics = [m for m in values[run.run_id] if not m.is_arg]
        newest = ", ".join(_pair(m) for m in metrics[:LISTED_VALUES])
        table.add_row(
            styled(run.run_id),
            f"{run.tstamp:%Y-%m-%d %H:%M}",
            styled(run.filename),
            styled(run.status.value, COLORS[run.status.value]),
            duration(run.seconds),
            styled(arguments),
            styled(newest + (" …" if len(metrics) > LISTED_VALUES else "")),
        )
    console().print(table)


def _print_run(project: Project, run: catalog.RunRow, values: list[catalog.Metric]) -> None:
    out = console()
    status = (run.status.value, COLORS[run.status.value])
    head = ((run.run_id, "bold"), (f"  {run.filename}  ", ""), status)
    out.print(line(*head, (f" {duration(run.seconds)}", "")))
    for name, text in _facts(project, run):
        out.print(line((f"  {name:<10} ", "dim"), (text, "")))
    _print_values("arguments", [m for m in values if m.is_arg])
    _print_metrics(project, run, [m for m in values if not m.is_arg])
    _print_loops(catalog.loops(project.db, run))
    _print_data(catalog.data_files(project.db, run))
    for note in catalog.notes(project.db, run):
        out.print(line(("note ", "yellow"), (note, "")))
    if run.traceback:
        out.print(styled("\n" + run.traceback.rstrip(), "red", keep="\n\t"))
    _print_change(project, run)


def _facts(project: Project, run: catalog.RunRow) -> list[tuple[str, str]]:
    packages = _of_type(dict, run.environment.get("packages"))
    devices = _of_type(list, run.environment.get("devices"))
    facts = [
        ("started", f"{run.tstamp:%Y-%m-%d %H:%M:%S}"),
        ("command", " ".join(run.argv)),
        ("where", f"{run.user_name}@{run.host}:{run.cwd}"),
        ("python", f"{run.python} on {run.platform}, {len(packages)} packages"),
        ("devices", ", ".join(_device(device) for device in devices)),
    ]
    if run.seconds is not None and run.prefix_seconds is not None:
        inside = run.seconds - run.prefix_seconds - (run.suffix_seconds or 0)
        parts = f"{duration(run.prefix_seconds)} before the loops, {duration(inside)} in them"
        facts.append(("time", f"{parts}, {duration(run.suffix_seconds or 0)} after"))
    if run.parent:
        facts.append(("parent", run.parent))
    if run.error:
        facts.append(("error", run.error))
    return facts + _version_facts(project, run)


def _of_type(kind: type[Any], found: Any) -> Any:
    """What the journal holds under some key, or an empty one if that is something else."""
    return found if isinstance(found, kind) else kind()


def _version_facts(project: Project, run: catalog.RunRow) -> list[tuple[str, str]]:
    version = catalog.version_of(project.db, run)
    if version is None:
        return [("version", "none was recorded")]
    base = version.user_commit[:10] if version.user_commit else "no commit yet"
    where = f"{version.user_branch or 'detached HEAD'} at {base}"
    if version.user_branch is None and version.user_commit is None:
        where = "no git repository"
    changed = ", with changes" if version.user_dirty else ""
    facts = [("version", f"{version.commit_id[:10]} ({where}{changed})")]
    if version.partial:
        facts.append(("", "only the script and its imports: the whole tree took too long"))
    for item in version.left_out[:5]:
        facts.append(("left out", f"{item['path']} ({size(item['size_bytes'])}, {item['reason']})"))
    if len(version.left_out) > 5:
        facts.append(("", f"and {len(version.left_out) - 5} more files"))
    return facts


def _print_values(title: str, values: list[catalog.Metric]) -> None:
    if not values:
        return
    table = _table(title, "value", "from")
    for metric in values:
        table.add_row(styled(metric.name), styled(_short(metric.last)), styled(metric.source))
    console().print("", table)


def _print_metrics(project: Project, run: catalog.RunRow, metrics: list[catalog.Metric]) -> None:
    from flor.store.columns import loop_name
    from flor.store.packs import read_columns

    if not metrics:
        return
    columns = read_columns(project.db, [run.run_pk], [metric.name for metric in metrics])
    table = _table("logged", "times", "first", "newest", "min", "max", "course")
    for metric in metrics:
        for column in columns.get(run.run_pk, {}).get(metric.name, []):
            numbers = [_number(x) for x in column.values if _is_number(x)]
            finite = [x for x in numbers if math.isfinite(x)]
            table.add_row(
                styled("/".join((*map(loop_name, column.path), metric.name))),
                f"{len(column.values):,}",
                styled(_short(column.values[0])),
                styled(_short(column.values[-1])),
                _short(min(finite)) if finite else "",
                _short(max(finite)) if finite else "",
                sparkline(numbers),
            )
    console().print("", table)


def _print_loops(loops: list[dict[str, Any]]) -> None:
    if not loops:
        return
    table = _table("loop", "times", "iterations", "took", "each")
    for loop in loops:
        seconds, iterations = loop["seconds"], loop["iterations"] or 0
        each = duration(seconds / iterations) if seconds is not None and iterations else ""
        counts = (f"{loop['times']:,}", f"{iterations:,}")
        table.add_row(styled(loop["name"]), *counts, duration(seconds), each)
    console().print("", table)


def _print_data(files: list[dict[str, Any]]) -> None:
    if not files:
        return
    table = _table("data", "size", "content", "note")
    for file in files[:20]:
        digest = file["digest"] or "not hashed"
        kind, _, rest = digest.partition(":")
        content = f"{kind}:{rest[:12]}" if rest else digest[:30]
        table.add_row(
            styled(file["path"]),
            size(file["size_bytes"]),
            styled(content),
            styled(file["note"] or ""),
        )
    console().print("", table)
    if len(files) > 20:
        echo(f"and {len(files) - 20:,} more; `flor show --json` lists them")


def _print_change(project: Project, run: catalog.RunRow) -> None:
    earlier = catalog.previous_run(project.db, run)
    if earlier is None or earlier.commit_id is None or run.commit_id is None:
        return
    echo()
    if earlier.commit_id == run.commit_id:
        echo(f"the code is that of the run before, {earlier.run_id}")
        return
    try:
        repository = _repository(project.settings)
        change = repository.diff(earlier.commit_id, run.commit_id, color=False)
    except GitError as error:
        echo(f"the change since {earlier.run_id} cannot be shown: {error}")
        return
    echo(f"changed since {earlier.run_id}:\n")
    click.echo(colored_diff(change) if sys.stdout.isatty() else clean(change), nl=False)


def _print_script(settings: Settings, run: catalog.RunRow) -> None:
    """The script's bytes; on a terminal, as text that cannot command it."""
    if run.commit_id is None:
        raise UnknownRun(f"run {run.run_id} has no code version; `flor show` may say why")
    content = _repository(settings).read(run.commit_id, run.filename)
    if sys.stdout.isatty():
        echo(content.decode(errors="replace"), nl=False)
    else:
        click.echo(content, nl=False)


def _repository(settings: Settings) -> Repository:
    from flor.git import open_repository

    return open_repository(settings.root, settings.flor_dir, settings.branch, create=False)


def _run_json(run: catalog.RunRow, values: list[catalog.Metric]) -> dict[str, Any]:
    arguments = {m.name: _plain(m.last) for m in values if m.is_arg}
    newest = {m.name: _plain(m.last) for m in values if not m.is_arg}
    return run.to_json() | {"args": arguments, "values": newest}


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return (
        value if isinstance(value, (bool, int, float, str, list, dict, type(None))) else str(value)
    )


def sparkline(numbers: Sequence[float], width: int = SPARK_WIDTH) -> str:
    """The course of a series in one line; longer ones by the mean of each stretch."""
    finite = [x for x in numbers if math.isfinite(x)]
    if len(finite) < 2:
        return ""
    count = min(width, len(finite))
    edges = [len(finite) * i // count for i in range(count + 1)]
    means = [sum(finite[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    if low == high:
        return BARS[0] * count
    steps = len(BARS) - 1
    return "".join(BARS[round((x - low) / (high - low) * steps)] for x in means)


def duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 1e-3:
        return f"{max(seconds, 0) * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def size(count: int | None) -> str:
    if count is None:
        return ""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024  # type: ignore[assignment]  # shown with one decimal
    raise AssertionError


def _device(device: Any) -> str:
    if not isinstance(device, dict):
        return str(device)
    count = device.get("count")
    return f"{count} × {device.get('name')}" if count else str(device.get("name"))


def _pair(metric: catalog.Metric) -> str:
    return f"{metric.name}={_short(metric.last)}"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, datetime):
        return str(value)[:19]
    text = str(value)
    return text if len(text) <= 30 else text[:29] + "…"


def _number(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an int of hundreds of digits
        return math.inf if value > 0 else -math.inf


def _is_number(value: Any) -> bool:
    return (
        not isinstance(value, bool) and hasattr(value, "__float__") and not isinstance(value, str)
    )


def _table(*names: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    right = {"took", "times", "first", "newest", "min", "max", "iterations", "each", "size"}
    for name in names:
        justify: Any = "right" if name in right else "left"
        table.add_column(name, justify=justify, overflow="fold")
    return table
