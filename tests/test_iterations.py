"""The iterations of loops as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from flor.config import Settings
from flor.errors import QueryError
from flor.store.database import Database, open_database
from flor.store.ingest import ingest
from flor.store.iterations import check_iterations, loop_names, read_iterations
from tests.conftest import JournalWriter


@pytest.fixture
def db(settings: Settings, journal: Callable[..., JournalWriter]) -> Iterator[Database]:
    """Two runs; loops with the same name at two places, and one executed twice."""
    # epoch 0   step 0 ("a"), 1     step 0, 1, 2 (again)
    # epoch 1
    # step 0                                      the other run has no loop
    one = journal()
    one.loop(1, "epoch")
    one.loop(2, "step", 1, 0)
    one.lines({"t": "value", "loop": 2, "iteration": 0, "value": "a"})
    one.loop_end(2, 2)
    one.loop(3, "step", 1, 0)
    one.lines({"t": "value", "loop": 3, "iteration": 0, "value": "a"})
    one.loop_end(3, 3)
    one.loop_end(1, 2)
    one.loop(4, "step")
    one.loop_end(4, 1)
    one.end()
    journal("20261118-190313-bbbbbb").end()
    with open_database(settings) as found:
        ingest(settings, found)
        yield found


def test_every_context_once(db: Database) -> None:
    one, other = read_iterations(db, [1, 2], ["step", "nothing"]).values()

    inner, top = one["step"]
    assert (inner.path, inner.dims.tolist()) == (("epoch", "step"), [[0, 0], [0, 1], [0, 2]])
    assert (top.path, top.dims.tolist()) == (("step",), [[0]])
    assert inner.labels[0] is None
    assert inner.labels[1] is not None
    assert inner.labels[1].tolist() == ["a", 1, 2]
    assert inner.values.tolist() == [True] * 3
    assert other == {}


def test_loop_names(db: Database) -> None:
    assert loop_names(db, ["step", "loss", "epoch"]) == ["step", "epoch"]
    assert loop_names(db, []) == []


def test_as_many_as_a_table_may_have() -> None:
    check_iterations(100_000_000)
    with pytest.raises(QueryError, match="100,000,001 iterations"):
        check_iterations(100_000_001)


def test_executions_that_yielded_different_things_are_apart(settings, journal):
    # shard 0 ("a")     shard 0 ("b")     shard 0
    one = journal()
    for number, label in ((1, "a"), (2, "b"), (3, None)):
        one.loop(number, "shard")
        if label:
            one.lines({"t": "value", "loop": number, "iteration": 0, "value": label})
        one.loop_end(number, 1)
    one.end()
    with open_database(settings) as found:
        ingest(settings, found)
        columns = read_iterations(found, [1], ["shard"])[1]["shard"]
    labels = [
        column.labels[0].tolist() if column.labels[0] is not None else None for column in columns
    ]
    assert labels == [["a"], ["b"], None]
