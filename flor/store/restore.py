"""`flor.load`: from a question to a restored state."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from operator import index
from typing import Any

from flor.checkpoint.state import State
from flor.config import Settings
from flor.errors import BucketError, DamagedCheckpoint, NoCheckpoint, with_single_stops
from flor.store.bucket import store_of
from flor.store.catalog import find_run
from flor.store.checkpoints import (
    Listed,
    choose,
    choose_where,
    list_checkpoints,
    newest_with_checkpoints,
    present,
    read_manifest,
    run_of,
)
from flor.store.database import Database


def load(
    settings: Settings,
    db: Database,
    name: str | None,
    where: str | None,
    names: Mapping[str, Any],
    *,
    with_rng: bool = False,
    trust: bool = False,
) -> State:
    """The state at a place, restored into the objects among `names`. See `flor.load`."""
    place = {key: _number(value) for key, value in names.items() if _is_place(value)}
    targets = {key: value for key, value in names.items() if key not in place}
    store = store_of(settings)
    run = None
    if name not in (None, "latest"):
        run = run_of(db, str(name))
    elif where is None:
        run = newest_with_checkpoints(db)
    if where is not None:
        listed = choose_where(settings, db, store, where, run, place)
    else:
        assert run is not None
        listed = choose(db, store, run, place)
    try:
        state = State(read_manifest(store, listed), store, trust=trust)
        state.restore(targets, with_rng=with_rng)
    except DamagedCheckpoint as error:
        message = f"{error}. {_others(db, store, listed)}"
        raise DamagedCheckpoint(with_single_stops(message)) from error
    return state


def _is_place(value: Any) -> bool:
    """Numbers and texts tell where; they could not be restored into anyway."""
    return isinstance(value, (Real, str)) and not isinstance(value, bool)


def _number(value: Any) -> int | float | str:
    """Python's own of a number: NumPy's come out of data frames."""
    if isinstance(value, str):
        return value
    return index(value) if isinstance(value, Integral) else float(value)


def _others(db: Database, store: Any, damaged: Listed) -> str:
    listed = list_checkpoints(db, find_run(db, damaged.run_id))
    whole = []
    for item in present(store, listed):
        try:
            State(read_manifest(store, item), store).check()
        except (DamagedCheckpoint, NoCheckpoint, BucketError):
            continue
        whole.append(item.where)
    return f"Checkpoints of the run that are whole: {'; '.join(whole) or 'none'}"
