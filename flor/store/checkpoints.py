"""The checkpoints of runs: which there are, at which place, and which answers to a question."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flor.errors import DamagedCheckpoint, NoCheckpoint, ObjectMissing, QueryError, UnknownRun
from flor.model import Checkpoint, Context, Step
from flor.objects import ObjectStore
from flor.store.catalog import RunRow, find_run
from flor.store.database import Database
from flor.store.places import VALUE, Place, Wanted, is_same, resolved, shortened, yielded

if TYPE_CHECKING:
    import pandas as pd

    from flor.checkpoint.manifest import Manifest
    from flor.config import Settings

SHOWN = 6  # places in a message
FIELDS = (
    *("number", "manifest", "loop", "iteration", "boundary", "final", "size_bytes", "new_bytes"),
    *("stall_seconds", "write_seconds", "at", "names", "scope"),
)
SHOWN_FIELDS = ("boundary", "final", "size_bytes", "new_bytes", "stall_seconds", "write_seconds")


@dataclass(frozen=True)
class Listed:
    """A checkpoint of a run, with its place by name: the main loop's iteration is the last."""

    run_id: str
    place: Context
    checkpoint: Checkpoint

    @property
    def where(self) -> str:
        steps = [
            f"{step.name} {step.iteration}"
            + ("" if step.value is None else f" ({shortened(step.value)})")
            for step in self.place
        ]
        return ", ".join(steps) or "the top level"

    @property
    def ends_loop(self) -> bool:
        """Whether it was taken when the main loop had ended, not where a nested one does."""
        return self.checkpoint.final and self.checkpoint.boundary is None

    def is_at(self, place: Iterable[Wanted]) -> bool:
        """Whether it is in those iterations."""
        steps = {step.name: step for step in self.place}
        return all(wanted.fits(steps.get(wanted.loop)) for wanted in place)


def list_checkpoints(db: Database, run: RunRow) -> list[Listed]:
    """Those that the run's journals list, in the order in which they were taken."""
    loops = {
        row[0]: row[1:]
        for row in db.execute(
            "select loop_pk, name, parent_pk, parent_iteration from loop_instances "
            "where run_pk = ?",
            (run.run_pk,),
        )
    }
    rows = db.execute(
        "select checkpoint, manifest, loop_pk, iteration, boundary, final, size_bytes, new_bytes, "
        "stall_seconds, write_seconds, at, names, scope from checkpoints where run_pk = ? "
        "order by file_no, at, checkpoint",
        (run.run_pk,),
    )
    labels = _labels(db, loops)
    found = []
    for row in rows:
        checkpoint = Checkpoint(
            **dict(zip(FIELDS, row, strict=True))
            | {"final": bool(row[5]), "names": tuple(json.loads(row[11]))}
        )
        place = _place(loops, labels, checkpoint.loop, checkpoint.iteration)
        found.append(Listed(run.run_id, place, checkpoint))
    return found


def table(settings: Settings, db: Database, name: str | None) -> pd.DataFrame:
    """The checkpoints of the run that `name` names; without one, of the newest that has any.

    Raises UnknownRun or NoCheckpoint.
    """
    import pandas as pd

    from flor.store.bucket import store_of

    store = store_of(settings)
    run = newest_with_checkpoints(db) if name is None else run_of(db, name)
    listed = list_checkpoints(db, run)
    there = {item.checkpoint.manifest for item in present(store, listed)}
    columns = _value_columns(listed)
    rows = []
    for item in listed:
        row: dict[str, Any] = {"run_id": item.run_id}
        for step in item.place:
            row[step.name] = step.iteration
            if step.name in columns:
                row[columns[step.name]] = yielded(step)
        row |= {name: getattr(item.checkpoint, name) for name in SHOWN_FIELDS}
        row["kept"] = item.checkpoint.manifest in there
        rows.append(row)
    return pd.DataFrame(rows, columns=None if rows else ["run_id", *SHOWN_FIELDS, "kept"])


def _value_columns(listed: Iterable[Listed]) -> dict[str, str]:
    """The columns for what loops yielded, of those for which that says more than the number."""
    steps = [step for item in listed for step in item.place]
    names = {step.name for step in steps}
    found = {}
    for name in dict.fromkeys(step.name for step in steps if step.value is not None):
        column = name + VALUE
        while column in names:
            column += "_yielded"
        found[name] = column
    return found


def run_of(db: Database, name: str) -> RunRow:
    """As `find_run`, but that every run begins with nothing. Raises UnknownRun."""
    if not name:
        raise UnknownRun("the run's name is empty; `flor runs` lists them")
    return find_run(db, name)


def newest_with_checkpoints(db: Database) -> RunRow:
    """The newest run that has any. Raises NoCheckpoint."""
    sql = (
        "select r.run_id from runs r where exists "
        "(select 1 from checkpoints c where c.run_pk = r.run_pk)"
    )
    params: list[Any] = []
    if db.scope is not None:
        sql += " and r.projid = ?"
        params.append(db.scope)
    found = db.execute(f"{sql} order by r.tstamp desc, r.run_id desc limit 1", params)
    if not found:
        raise NoCheckpoint(
            "no run has checkpoints yet: wrap a training in "
            "`with flor.checkpointing(model=…, optimizer=…):`"
        )
    return find_run(db, found[0][0])


def present(store: ObjectStore, listed: Iterable[Listed]) -> list[Listed]:
    """Those whose manifest is still to be had."""
    return [item for item in listed if _is_there(store, item.checkpoint.manifest)]


def read_manifest(store: ObjectStore, listed: Listed) -> Manifest:
    """The document of a checkpoint. Raises NoCheckpoint or DamagedCheckpoint."""
    from flor.checkpoint.manifest import Manifest

    try:
        content = store.get(listed.checkpoint.manifest)
    except ObjectMissing as error:
        if _is_there(store, listed.checkpoint.manifest):
            raise DamagedCheckpoint(
                f"the checkpoint at {listed.where} of run {listed.run_id} cannot be read: {error}"
            ) from error
        raise NoCheckpoint(
            f"run {listed.run_id} had a checkpoint at {listed.where}, which is not kept any more: "
            f"{error}"
        ) from error
    manifest = Manifest.from_bytes(content)
    if manifest.run_id != listed.run_id:
        raise DamagedCheckpoint(
            f"the checkpoint at {listed.where} is listed by run {listed.run_id} and says that it "
            f"is of run {manifest.run_id}; the journal was changed"
        )
    return manifest


def choose(db: Database, store: ObjectStore, run: RunRow, place: Place) -> Listed:
    """The newest checkpoint of a run at a place; without one, its last. Raises NoCheckpoint.

    Of an iteration that is named it is the one where its nested loop ended, as for all others.
    """
    listed = list_checkpoints(db, run)
    if not listed:
        raise NoCheckpoint(
            f"run {run.run_id} has no checkpoints: wrap its training in "
            "`with flor.checkpointing(model=…, optimizer=…):`"
        )
    _insist_on_loops(f"run {run.run_id} has", listed, place)
    wanted = resolved(place, _loops_of(listed))
    there = present(store, listed)
    at = [item for item in there if item.is_at(wanted)]
    if at:
        return _preferred(store, at[-1], at, {item.loop for item in wanted})
    lost = any(item.is_at(wanted) for item in listed)
    never = _no_iteration(db, run, wanted) or "it was never taken, to keep the overhead low"
    raise NoCheckpoint(
        f"run {run.run_id} has no checkpoint at {_asked(place) or 'any place'}: "
        f"{'it is not kept any more' if lost else never}. There are: {_shown(there)}"
    )


def _loops_of(listed: Iterable[Listed]) -> set[str]:
    return {step.name for item in listed for step in item.place}


def _preferred(
    store: ObjectStore, found: Listed, others: Sequence[Listed], named: Collection[str]
) -> Listed:
    """The one where the nested loop ended, if that iteration was named and both are there."""
    if not found.ends_loop or not found.place or found.place[-1].name not in named:
        return found
    for item in reversed(others):
        same = item.checkpoint.loop == found.checkpoint.loop and item.place == found.place
        if same and not item.ends_loop and _is_there(store, item.checkpoint.manifest):
            return item
    return found


def _insist_on_loops(who: str, listed: Sequence[Listed], place: Place) -> None:
    """Raise NoCheckpoint where a place names no loop of these checkpoints, or no iteration."""
    names = _loops_of(listed)
    for name, value, by_value in resolved(place, names):
        if name not in names:
            known = ", ".join(sorted(names)) or "none"
            raise NoCheckpoint(
                f"{who} no checkpoints by {name!r}; its loops with checkpoints: {known}"
            )
        if isinstance(value, float) and not by_value:
            raise NoCheckpoint(
                f"iterations are named by their number, counted from 0, or the text that the loop "
                f"yielded; {name}={value!r} is neither, {name}{VALUE}={value!r} means the number "
                f"that it yielded. There are: {_shown(listed)}"
            )


def _no_iteration(db: Database, run: RunRow, place: Iterable[Wanted]) -> str | None:
    """What is to be said where the run has no such iteration; None where it has one."""
    for name, value, by_value in place:
        ((entries,),) = db.execute(
            "select max(entries) from loop_instances where run_pk = ? and name = ?",
            (run.run_pk, name),
        )
        known = range(entries)
        if by_value and not _was_yielded(db, run, name, value, known):
            return f"no iteration of {name!r} yielded {value!r}"
        if not by_value and value not in known:
            return f"there is no such iteration of {name!r}, which had {entries:,}, counted from 0"
    return None


def _was_yielded(
    db: Database, run: RunRow, name: str, value: int | float | str, iterations: range
) -> bool:
    rows = db.execute(
        "select v.iteration, v.value from loop_values v join loop_instances i "
        "on i.loop_pk = v.loop_pk where i.run_pk = ? and i.name = ?",
        (run.run_pk, name),
    )
    if any(is_same(json.loads(text), value) for _, text in rows):
        return True
    if isinstance(value, str) or value != value // 1:
        return False
    return int(value) in iterations and int(value) not in {iteration for iteration, _ in rows}


def _asked(place: Place) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in place.items())


def choose_where(
    settings: Settings,
    db: Database,
    store: ObjectStore,
    where: str,
    run: RunRow | None,
    place: Place,
) -> Listed:
    """The newest checkpoint at a place and at one of the rows of the frame that fulfil a condition.

    Raises QueryError or NoCheckpoint.
    """
    from flor.store.query import sql

    if not where.strip():
        raise QueryError("the condition is empty: where='acc > 0.9', or leave it out")
    query = f"select * from frame where ({where}\n)"  # noqa: S608 - a sandbox
    frame = sql(settings, db, query, loops=True)
    if frame.empty:
        raise NoCheckpoint(f"no row of the table fulfils {where!r}")
    if "run_id" not in frame:
        raise QueryError(f"{where!r} does not lead to rows of runs")
    rows = frame.to_dict("records")
    known: dict[str, list[Listed]] = {}
    for row in reversed(rows):
        run_id = str(row["run_id"])
        if run is not None and run_id != run.run_id:
            continue
        if run_id not in known:
            known[run_id] = list_checkpoints(db, find_run(db, run_id))
        wanted = resolved(place, _loops_of(known[run_id]))
        here = [item for item in known[run_id] if _agrees(item, row) and item.is_at(wanted)]
        for item in reversed(here):
            if _is_there(store, item.checkpoint.manifest):
                named = {*_named(item, row), *(found.loop for found in wanted)}
                return _preferred(store, item, here, named)
    found = [item for items in known.values() for item in items]
    if found:
        _insist_on_loops("the runs have" if run is None else f"run {run.run_id} has", found, place)
    count = f"{len(rows):,} rows fulfil" if len(rows) > 1 else "one row fulfils"
    at = f" at {_asked(place)}" if place else ""
    raise NoCheckpoint(
        f"{count} {where!r}, and none has a checkpoint{at}. "
        f"There are: {_shown(present(store, found))}"
    )


def _agrees(item: Listed, row: Mapping[str, Any]) -> bool:
    """Whether a row of the frame is at the place of a checkpoint."""
    named = _named(item, row)
    return all(named.get(step.name, step.iteration) == step.iteration for step in item.place)


def _named(item: Listed, row: Mapping[str, Any]) -> dict[str, int]:
    """The iterations that a row of the frame tells, of the loops around a checkpoint."""
    told = {step.name: row.get(step.name) for step in item.place}
    # NaN, where the row is outside of a loop, is not itself.
    return {name: int(at) for name, at in told.items() if at is not None and at == at}  # noqa: PLR0124


def _shown(listed: Sequence[Listed]) -> str:
    if not listed:
        return "none"
    places = [item.where for item in listed]
    if len({item.run_id for item in listed}) > 1:
        places = [f"{item.where} of {item.run_id}" for item in listed]
    places = list(dict.fromkeys(places))  # an iteration may have two
    more = f" and {len(places) - SHOWN} before" if len(places) > SHOWN else ""
    return "; ".join(places[-SHOWN:]) + more


def _is_there(store: ObjectStore, digest: str) -> bool:
    if store.has(digest):
        return True
    try:
        store.local(digest)
    except ObjectMissing:
        return False
    return True


def _place(
    loops: Mapping[int, Any], labels: Mapping[tuple[int, int], Any], loop: int, iteration: int
) -> Context:
    steps: list[Step] = []
    while loop:
        name, parent, parent_iteration = loops[loop]
        steps.append(Step(name, iteration, labels.get((loop, iteration))))
        loop, iteration = parent, parent_iteration
    return tuple(reversed(steps))


def _labels(db: Database, loops: Mapping[int, Any]) -> dict[tuple[int, int], Any]:
    rows = db.execute(
        "select loop_pk, iteration, value from loop_values where loop_pk in_list(?)",
        (list(loops),),
    )
    return {(row[0], row[1]): json.loads(row[2]) for row in rows}
