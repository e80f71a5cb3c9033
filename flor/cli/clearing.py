"""`flor gc`: the plan, the question, and what was done."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from flor.cli.listing import size
from flor.cli.storing import count, progress_shown, table_of
from flor.cli.terminal import console, echo, styled
from flor.errors import StoreError
from flor.store.bucket import bucket_of
from flor.store.project import opened
from flor.store.sweeping import Options, Plan, Swept, alone, plan_sweep, sweep, tidy
from flor.store.transfer import Silent
from flor.store.usage import RunUsage, Usage, read_usage

if TYPE_CHECKING:
    from flor.config import Settings

LEAST_PRIORITY = 19
NAMED = 4  # of the iterations that stay


def gc(
    settings: Settings, options: Options, *, dry_run: bool, yes: bool, as_json: bool, auto: bool
) -> int:
    """Show the plan, ask, and do it; the exit code: 1 if something is refused or fails."""
    if auto:
        os.nice(LEAST_PRIORITY)
    if not settings.flor_dir.is_dir():
        echo(f"nothing is stored in {settings.root}")
        return 0
    if dry_run:
        return _gc(settings, options, ask=False, work=False, as_json=as_json, quiet=False)
    with alone(settings) as held:
        if held:
            tidy(settings)
            quiet = auto or as_json
            return _gc(settings, options, ask=not yes and not auto, as_json=as_json, quiet=quiet)
    if auto:
        return 0
    raise StoreError(f"another `flor gc` is at work in {settings.root}; wait until it has finished")


def _gc(
    settings: Settings,
    options: Options,
    *,
    ask: bool,
    as_json: bool,
    quiet: bool,
    work: bool = True,
) -> int:
    bucket = bucket_of(settings)
    with opened(settings) as project:
        plan = plan_sweep(read_usage(project, bucket, keep_manifests=work), options)
    if not quiet and not as_json:
        _print_plan(plan)
    for refusal in plan.refusals:
        echo(f"flor: {refusal}", err=True)
    swept = Swept()
    work = work and not plan.empty
    if work and ask and not _agreed():
        echo("nothing was changed")
        return 0
    try:
        if work:
            sweep(plan, bucket, Silent() if quiet else progress_shown(), swept)
    finally:
        if as_json:
            click.echo(json.dumps(_plan_json(plan) | {"done": _done(swept, work=work)}, indent=1))
        elif work and not quiet:
            _print_swept(plan, swept)
    failed = [*swept.failures, *swept.uploaded.failures]
    for failure in failed:
        echo(f"flor: {failure}", err=True)
    return int(bool(plan.refusals or failed))


def _agreed() -> bool:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("nobody is here to be asked; add --yes to do it.")
    return click.confirm("do this?")


def _print_plan(plan: Plan) -> None:
    usage = plan.usage
    limit = size(int(plan.options.limit_bytes))
    echo(f"{size(usage.local_bytes)} in {usage.settings.objects_dir}, the limit is {limit}")
    if plan.empty:
        echo("nothing to do")
        return
    table = table_of("do", "what", "size", "why", right=("what", "size"))
    for row in _plan_rows(plan):
        table.add_row(*(styled(cell) for cell in row))
    console().print(table)
    if plan.later:
        later = size(plan.bytes_of(plan.later))
        echo(f"{later} of it were used in the last minutes; a later `flor gc` removes them")
    echo(f"then {size(plan.left_bytes)} are here")


def _plan_rows(plan: Plan) -> Iterator[tuple[str, str, str, str]]:
    usage = plan.usage
    if plan.partials:
        files = count(len(plan.partials), "file")
        yield "remove", files, size(plan.partial_bytes), "unfinished"
    if plan.orphans:
        yield (
            *("remove", count(len(plan.orphans)), size(plan.bytes_of(plan.orphans))),
            "nobody needs them",
        )
    retired = Counter(checkpoint.run_id for checkpoint in plan.retired)
    freed = _by_run(usage, (*plan.freed, *plan.later))
    for run in usage.runs:
        if run.run_id in retired:
            left = _kept(plan, run)
            gain = size(sum(usage.local[digest].size_bytes for digest in freed.get(run.run_id, ())))
            going = count(retired[run.run_id], "checkpoint")
            yield "retire", going, gain, f"of run {run.run_id}, which keeps {left}"
    if None in freed:
        gain = size(plan.bytes_of(freed[None]))
        yield "", count(len(freed[None])), gain, "that several of these runs share"
    for run_id, digests in _by_run(usage, plan.spooled).items():
        owner = "of several runs" if run_id is None else f"of run {run_id}"
        yield "spool", count(len(digests)), size(plan.bytes_of(digests)), owner


def _kept(plan: Plan, run: RunUsage) -> str:
    """The checkpoints that a run keeps, by their iterations where those tell them apart."""
    gone = {checkpoint.manifest for checkpoint in plan.retired}
    left = [item for item in run.there if item.manifest not in gone]
    if len({item.instance for item in left}) > 1 or len(left) > NAMED:
        return f"{len(left):,}"
    *before, last = (f"{item.iteration:,}" for item in left)
    return f"iterations {', '.join(before)} and {last}" if before else f"iteration {last}"


def _by_run(usage: Usage, digests: Iterable[str]) -> dict[str | None, list[str]]:
    """The objects that one run needs by run, those that several do under None."""
    found: dict[str | None, list[str]] = {}
    for digest in digests:
        users = usage.users.get(digest, ())
        found.setdefault(next(iter(users)) if len(users) == 1 else None, []).append(digest)
    return found


def _print_swept(plan: Plan, swept: Swept) -> None:
    parts = []
    if swept.partials:
        parts.append(f"removed {count(swept.partials, 'unfinished file')}")
    if swept.removed_objects:
        parts.append(f"removed {count(swept.removed_objects)}, {size(swept.removed_bytes)}")
    if swept.retired:
        parts.append(f"retired {count(swept.retired, 'checkpoint')}")
    if swept.uploaded.objects:
        gone = count(swept.uploaded.objects)
        parts.append(f"uploaded {gone}, {size(swept.uploaded.size_bytes)}")
    if swept.mended:
        parts.append(f"replaced {count(swept.mended)} in the bucket whose content was wrong")
    if swept.spooled:
        parts.append(f"spooled {count(swept.spooled)}, {size(swept.spooled_bytes)}")
    if swept.spared:
        parts.append(f"left {count(swept.spared)} that were used in the meantime")
    echo("; ".join(parts) or "nothing was changed")


def _plan_json(plan: Plan) -> dict[str, Any]:
    retired = Counter(checkpoint.run_id for checkpoint in plan.retired)
    return {
        "local_bytes": plan.usage.local_bytes,
        "limit_bytes": plan.options.limit_bytes,
        "remove": {"objects": len(plan.orphans), "bytes": plan.bytes_of(plan.orphans)},
        "unfinished": {"files": len(plan.partials), "bytes": plan.partial_bytes},
        "retire": [{"run_id": run_id, "checkpoints": n} for run_id, n in sorted(retired.items())],
        "freed_bytes": plan.bytes_of(plan.freed),
        "later_bytes": plan.bytes_of(plan.later),
        "spool": {"objects": len(plan.spooled), "bytes": plan.bytes_of(plan.spooled)},
        "left_bytes": plan.left_bytes,
        "refusals": list(plan.refusals),
    }


def _done(swept: Swept, *, work: bool) -> dict[str, Any] | None:
    if not work:
        return None
    numbers = {name: value for name, value in vars(swept).items() if isinstance(value, int)}
    uploaded = {"uploaded": swept.uploaded.objects, "uploaded_bytes": swept.uploaded.size_bytes}
    return numbers | uploaded
