"""The public functions. Each is a line or two: the session knows what to do."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from sys import _getframe
from typing import TYPE_CHECKING, Any, TypeVar

from flor import session

if TYPE_CHECKING:
    import pandas as pd

    from flor.checkpoint.state import State
    from flor.record.loops import Loop

T = TypeVar("T")
P = TypeVar("P", str, "os.PathLike[str]")


def log(name: str, value: T) -> T:
    """Record `value` under `name` at this place in the loops, and return it.

    The record survives whatever happens to the process once this has returned. Numbers, text,
    lists and dicts keep their type; arrays, tensors and images are stored by content.
    """
    try:  # noqa: SIM105 - a context manager would cost more than the call
        session.mode.log(name, value, _getframe(1))
    except RecursionError:  # the script's own recursion is near its limit; that is not its end
        pass
    return value


def arg(name: str, default: T) -> T:
    """The value of an argument: from `--kwargs name=value` on the command line, else `default`.

    The text is read as the default's type. Raises ArgumentError when it does not fit.
    """
    return session.mode.arg(name, default, _getframe(1))


def loop(name: str, iterable: Iterable[T]) -> Loop[T]:
    """Iterate over `iterable`; what is logged inside belongs to this iteration of loop `name`.

    Works like the iterable itself with `break`, exceptions, nesting and, where it has a length,
    `len`.
    """
    return session.mode.loop(name, iterable)  # type: ignore[return-value]  # every mode makes a Loop


def checkpointing(**objects: Any) -> AbstractContextManager[None]:
    """Take checkpoints of the objects that training changes.

    `with flor.checkpointing(model=net, optimizer=opt):` around the training loops. The first
    `flor.loop` inside is the main loop; the state of each of its iterations is copied where the
    loop nested in it ends, and written in the background, as often as is worth its cost.
    """
    return session.mode.checkpointing(objects)


def data(path: P) -> P:
    """Declare a file, a folder or an `s3://` object as data of this run, and return it.

    Files that Python opens are found without this; it is for what C libraries read by themselves.
    """
    try:
        session.mode.data(os.fspath(path))
    except Exception as error:  # noqa: BLE001 - the shield: recording never stops a training
        session.tell(f"flor.data({path!r}) was not recorded: {error}")
    return path


def checkpoints(run: str | None = None) -> pd.DataFrame:
    """The checkpoints of a run, one a row: where each was taken, what it costs, if it is kept.

    Without a run they are those of the newest that has any, which may be this process's own.
    """
    from flor.store.checkpoints import table
    from flor.store.project import opened

    session.settle()
    with opened(session.settings()) as project:
        return table(project.settings, project.db, run)


def load(
    run: str | None = None,
    /,
    *,
    where: str | None = None,
    with_rng: bool = False,
    trust: bool = False,
    **names: Any,
) -> State:
    """The state of a checkpoint; objects that are given are restored to it.

    `flor.load("latest", epoch=7, model=net)`: numbers and texts name the iteration, objects are
    restored in place under the name that they were declared with. `epoch_value=7` names it by the
    number that the loop yielded. Without an iteration it is the run's last checkpoint, without a
    run that of the newest run that has any, this process's own included. `where` is a SQL
    condition over the table that its iteration has to fulfil. `with_rng` sets the random generators
    of this process too. `trust` allows pickles of others.

    The result has what the checkpoint holds by name, loop variables included.
    """
    from flor.store.project import opened
    from flor.store.restore import load as restore

    session.settle()
    with opened(session.settings()) as project:
        return restore(
            *(project.settings, project.db, run, where, names), with_rng=with_rng, trust=trust
        )


def propagate(new_source: str, old_source: str, lineno: int) -> str:
    """The older source with the statement that begins at a line of the new one, where it belongs.

    What the statement needs and the older source lacks comes with it; nothing else changes. Raises
    NoPlace, which says why, where there is no equivalent place, and BadSource.
    """
    from flor.source.propagate import patched

    return patched(new_source, old_source, lineno)


def commit() -> str | None:
    """Close the current run and return its id; the next call begins another. For notebooks."""
    return session.commit()


def dataframe(*names: str, where: str | None = None) -> pd.DataFrame:
    """One table over all runs: a column for each name, and the dimensions that they share.

    Without names: one row a run, with its arguments and what it logged outside of loops.
    `where` is a SQL condition over that table.
    """
    from flor.store.project import opened
    from flor.store.query import dataframe as answer

    with opened(session.settings()) as project:
        return answer(project.settings, project.db, names, where)


def sql(text: str) -> pd.DataFrame:
    """The answer to one read-only SQL query over `runs`, `logs`, `loops`, `args`, `frame`, …"""
    from flor.store.project import opened
    from flor.store.query import sql as answer

    with opened(session.settings()) as project:
        return answer(project.settings, project.db, text)
