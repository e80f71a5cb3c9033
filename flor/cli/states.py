"""`flor checkpoints`."""

from __future__ import annotations

import json
import keyword
from typing import TYPE_CHECKING

import click

from flor.cli.listing import duration, size
from flor.cli.storing import table_of
from flor.cli.terminal import console, echo, styled
from flor.errors import DamagedCheckpoint, NoCheckpoint
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
        _print(listed, kept, store)


def _json(item: Listed, kept: bool) -> dict[str, object]:
    place = {step.name: step.iteration for step in item.place}
    values = {step.name: step.value for step in item.place if step.value is not None}
    found = {"run_id": item.run_id, "place": place, "values": values, "kept": kept}
    return found | item.checkpoint.to_json()


def _print(listed: list[Listed], kept: set[str], store: ObjectStore) -> None:
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
    if there:
        echo()
        _print_content(store, there)


def _print_content(store: ObjectStore, there: list[Listed]) -> None:
    """What the last checkpoint that is kept holds, each name once, and how to get it back."""
    last = there[-1]
    try:
        manifest = read_manifest(store, last)
    except (NoCheckpoint, DamagedCheckpoint) as error:
        echo(f"what the checkpoint at {last.where} holds cannot be read: {error}")
        return
    missing = {item.name: item.reason for item in manifest.missing}
    objects = [name for name in manifest.objects if name not in missing]
    values = dict.fromkeys(name for frame in manifest.frames for name in frame.values)
    variables = [name for name in values if name not in {*missing, *manifest.objects}]
    if objects:
        echo(f"objects     {', '.join(objects)}")
    if variables:
        echo(f"variables   {', '.join(variables)}")
    for name, reason in missing.items():
        echo(f"not held    {name}: {reason}")
    echo(f"restore     {_call(there, objects)}")


def _call(there: list[Listed], objects: list[str]) -> str:
    """What restores the first of the objects; names that are none in Python are quoted."""
    last = there[-1]
    # Its iteration would name the checkpoint before, where the nested loop ended.
    shared = last.ends_loop and any(item.place == last.place for item in there[:-1])
    given = {} if shared else {step.name: str(step.iteration) for step in last.place}
    given |= {name: name if _is_name(name) else "…" for name in objects[:1]}
    words = [json.dumps(last.run_id)]
    words += [f"{name}={value}" for name, value in given.items() if _is_name(name)]
    others = [f"{name!r}: {value}" for name, value in given.items() if not _is_name(name)]
    if others:
        words.append("**{" + ", ".join(others) + "}")
    return f"flor.load({', '.join(words)})"


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def _moment(item: Listed) -> str:
    boundary, final = item.checkpoint.boundary, item.checkpoint.final
    if boundary is not None:
        return f"after {boundary}" + (", last" if final else "")
    return "at the end of the loop" if final else "at its end"
