"""`flor checkpoints`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from flor.cli.listing import duration, size
from flor.cli.storing import table_of
from flor.cli.terminal import console, echo, styled
from flor.store.bucket import store_of
from flor.store.catalog import find_run
from flor.store.checkpoints import (
    Listed,
    list_checkpoints,
    newest_with_checkpoints,
    present,
    read_manifest,
)
from flor.store.project import opened

if TYPE_CHECKING:
    from flor.config import Settings
    from flor.objects import ObjectStore


def checkpoints(settings: Settings, name: str | None, *, as_json: bool) -> None:
    """Print the checkpoints of a run; without a name, of the newest run that has any."""
    with opened(settings) as project:
        run = newest_with_checkpoints(project.db) if name is None else find_run(project.db, name)
        listed = list_checkpoints(project.db, run)
    store = store_of(settings)
    kept = {item.checkpoint.manifest for item in present(store, listed)}
    if as_json:
        rows = [_json(item, item.checkpoint.manifest in kept) for item in listed]
        click.echo(json.dumps(rows, indent=1))
    elif not listed:
        echo(
            f"run {run.run_id} has no checkpoints\n"
            "wrap its training in `with flor.checkpointing(model=…, optimizer=…):`"
        )
    else:
        _print(run.run_id, listed, kept, store)


def _json(item: Listed, kept: bool) -> dict[str, object]:
    place = {step.name: step.iteration for step in item.place}
    return {"run_id": item.run_id, "place": place, "kept": kept} | item.checkpoint.to_json()


def _print(run_id: str, listed: list[Listed], kept: set[str], store: ObjectStore) -> None:
    table = table_of(
        *("checkpoint", "taken", "size", "new", "waited", "written", "kept"),
        right=("size", "new", "waited", "written"),
    )
    for item in listed:
        found = item.checkpoint
        table.add_row(
            styled(item.where),
            styled(_moment(item)),
            size(found.size_bytes),
            size(found.new_bytes),
            duration(found.stall_seconds),
            duration(found.write_seconds),
            "yes" if found.manifest in kept else "no",
        )
    console().print(table)
    there = [item for item in listed if item.checkpoint.manifest in kept]
    if not there:
        return
    last = there[-1]
    manifest = read_manifest(store, last)
    variables = [name for frame in manifest.frames for name in frame.values]
    objects = ", ".join(manifest.objects)
    echo(f"\nobjects     {objects}")
    if variables:
        echo(f"variables   {', '.join(dict.fromkeys(variables))}")
    for missing in manifest.missing:
        echo(f"not held    {missing.name}: {missing.reason}")
    place = ", ".join(f"{step.name}={step.iteration}" for step in last.place)
    first = next(iter(manifest.objects), "model")
    echo(f'restore     flor.load("{run_id}", {place}, {first}={first})')


def _moment(item: Listed) -> str:
    boundary, final = item.checkpoint.boundary, item.checkpoint.final
    if boundary is not None:
        return f"after {boundary}" + (", last" if final else "")
    return "at the end of the loop" if final else "at its end"
