"""Columns to one table. Each test is a small log, drawn, and the table that it gives."""

from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flor.store.arrays import STRING
from flor.store.contexts import RUN_DIMENSIONS
from flor.store.frames import RunRow, pivot, summary
from flor.store.packs import Column

START = datetime(2026, 11, 18, 19, 3, 12)
NA = None

Event = tuple[str, str, Any]  # "epoch=0/step=1", name, value


def run(pk: int = 1, **changes: Any) -> RunRow:
    row = RunRow(
        pk, "proj", START + timedelta(minutes=pk), "train.py", f"run-{pk}", "finished", 2.5
    )
    return row._replace(**changes)


def context(text: str) -> tuple[tuple[str, int], ...]:
    steps = [step.split("=") for step in text.split("/") if step]
    return tuple((loop, int(iteration)) for loop, iteration in steps)


def values_array(values: list[Any]) -> np.ndarray:
    for kind, dtype in ((float, np.float64), (bool, np.bool_), (int, np.int64)):
        if all(type(value) is kind for value in values):
            return np.array(values, dtype)
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def logged(
    *events: Event, args: tuple[str, ...] = (), labels: dict[str, Any] | None = None
) -> dict[str, list[Column]]:
    """What one run logged, as columns; `labels` says what loops yielded: {"epoch=0": 0.1}."""
    groups: dict[tuple[str, tuple[str, ...]], list[tuple[Any, Any]]] = {}
    for where, name, value in events:
        steps = context(where)
        groups.setdefault((name, tuple(loop for loop, _ in steps)), []).append((steps, value))
    found: dict[str, list[Column]] = {}
    for (name, path), items in groups.items():
        dims = np.array([[at for _, at in steps] for steps, _ in items], np.int64)
        known = {context(text): value for text, value in (labels or {}).items()}
        levels = []
        for level in range(len(path)):
            array = np.empty(len(items), dtype=object)
            array[:] = [known.get(steps[: level + 1]) for steps, _ in items]
            levels.append(None if all(item is None for item in array) else array)
        values = values_array([value for _, value in items])
        column = Column(path, dims.reshape(len(items), -1), tuple(levels), values, name in args)
        found.setdefault(name, []).append(column)
    return found


def table(frame: pd.DataFrame) -> list[tuple[Any, ...]]:
    """The rows without the dimensions of the run; nulls as None."""
    kept = frame.drop(columns=[*RUN_DIMENSIONS])
    assert isinstance(kept.index, pd.RangeIndex)
    return [
        tuple(None if not isinstance(cell, list) and pd.isna(cell) else cell for cell in row)
        for row in kept.itertuples(index=False, name=None)
    ]


def shown(frame: pd.DataFrame) -> list[str]:
    return [name for name in frame.columns if name not in RUN_DIMENSIONS]


def test_depths_join_on_the_loops_they_share():
    """lr repeats over everything, an epoch's acc over its steps; an epoch without steps stays."""
    # (top)     lr 0.1
    # epoch 0   step 0 loss=1.5   step 1 loss=1.2   acc=0.8
    # epoch 1   acc=0.9
    columns = logged(
        ("", "lr", 0.1),
        ("epoch=0/step=0", "loss", 1.5),
        ("epoch=0/step=1", "loss", 1.2),
        ("epoch=0", "acc", 0.8),
        ("epoch=1", "acc", 0.9),
    )
    frame = pivot([run()], {1: columns}, ["lr", "acc", "loss"])
    assert shown(frame) == ["epoch", "step", "lr", "acc", "loss"]
    assert table(frame) == [
        (0, 0, 0.1, 0.8, 1.5),
        (0, 1, 0.1, 0.8, 1.2),
        (1, NA, 0.1, 0.9, NA),
    ]
    assert str(frame["epoch"].dtype) == "int64"
    assert str(frame["step"].dtype) == "Int64"


def test_dimensions_come_first_and_are_typed():
    frame = pivot([run()], {1: logged(("epoch=0", "acc", 1))}, ["acc"])
    assert [*frame.columns] == ["projid", "tstamp", "filename", "run_id", "epoch", "acc"]
    assert [str(dtype) for dtype in frame.dtypes] == [
        *(STRING, "datetime64[us]", STRING, STRING, "int64", "int64")
    ]
    assert frame["tstamp"][0] == START + timedelta(minutes=1)


def test_an_outer_context_with_rows_has_none_of_its_own():
    # epoch 0   acc=0.8   step 0 loss=1.5
    columns = logged(("epoch=0", "acc", 0.8), ("epoch=0/step=0", "loss", 1.5))
    assert table(pivot([run()], {1: columns}, ["acc", "loss"])) == [(0, 0, 0.8, 1.5)]
    assert table(pivot([run()], {1: columns}, ["acc"])) == [(0, 0.8)]


def test_sibling_loops_are_stacked():
    """Two steps of training and two of validation are four rows, not two times two."""
    # epoch 0   train 0 loss=1   train 1 loss=2   val 0 vloss=3   val 1 vloss=4   acc=5
    columns = logged(
        ("epoch=0/train=0", "loss", 1),
        ("epoch=0/train=1", "loss", 2),
        ("epoch=0/val=0", "vloss", 3),
        ("epoch=0/val=1", "vloss", 4),
        ("epoch=0", "acc", 5),
    )
    frame = pivot([run()], {1: columns}, ["loss", "vloss", "acc"])
    assert shown(frame) == ["epoch", "train", "val", "loss", "vloss", "acc"]
    assert table(frame) == [
        (0, 0, NA, 1, NA, 5),
        (0, 1, NA, 2, NA, 5),
        (0, NA, 0, NA, 3, 5),
        (0, NA, 1, NA, 4, 5),
    ]


def test_one_name_in_sibling_loops():
    # epoch 0   train 0 loss=1   val 0 loss=2
    columns = logged(("epoch=0/train=0", "loss", 1), ("epoch=0/val=0", "loss", 2))
    assert table(pivot([run()], {1: columns}, ["loss"])) == [(0, 0, NA, 1), (0, NA, 0, 2)]


def test_several_values_in_one_context_are_rows():
    # epoch 0   loss=1, loss=2, loss=3   acc=9, acc=8   lr=0.1
    columns = logged(
        *(("epoch=0", "loss", value) for value in (1, 2, 3)),
        *(("epoch=0", "acc", value) for value in (9, 8)),
        ("epoch=0", "lr", 0.1),
    )
    frame = pivot([run()], {1: columns}, ["loss", "acc", "lr"])
    assert shown(frame) == ["epoch", "nth", "loss", "acc", "lr"]
    assert table(frame) == [(0, 0, 1, 9, 0.1), (0, 1, 2, 8, 0.1), (0, 2, 3, NA, 0.1)]
    assert "nth" not in pivot([run()], {1: columns}, ["lr"])


def test_a_loop_that_runs_twice_is_one_loop():
    """Its second iteration 0 logs a second value in the same context."""
    # epoch 0 loss=1   epoch 1 loss=2   epoch 0 loss=3   epoch 1 loss=4
    columns = logged(
        ("epoch=0", "loss", 1),
        ("epoch=1", "loss", 2),
        ("epoch=0", "loss", 3),
        ("epoch=1", "loss", 4),
    )
    assert table(pivot([run()], {1: columns}, ["loss"])) == [
        (0, 0, 1),
        (0, 1, 3),
        (1, 0, 2),
        (1, 1, 4),
    ]


def test_several_outer_values_stand_in_rows_of_their_own():
    # (top)     lr 0.1
    # epoch 0   acc=1   acc=2   step 0 loss=7   step 1 loss=8
    columns = logged(
        ("", "lr", 0.1),
        ("epoch=0", "acc", 1),
        ("epoch=0", "acc", 2),
        ("epoch=0/step=0", "loss", 7),
        ("epoch=0/step=1", "loss", 8),
    )
    assert table(pivot([run()], {1: columns}, ["lr", "acc", "loss"])) == [
        (0, 0, 0, 0.1, NA, 7),
        (0, 1, 0, 0.1, NA, 8),
        (0, NA, 0, 0.1, 1, NA),
        (0, NA, 1, 0.1, 2, NA),
    ]


def test_an_outer_value_of_a_name_logged_deeper_is_not_lost():
    """The epoch's own loss cannot repeat over steps that have a loss: it has its own row."""
    # epoch 0   step 0 loss=1   step 1 acc=5   loss=9
    # epoch 1   step 0 acc=6                   loss=8
    columns = logged(
        ("epoch=0/step=0", "loss", 1),
        ("epoch=0/step=1", "acc", 5),
        ("epoch=0", "loss", 9),
        ("epoch=1/step=0", "acc", 6),
        ("epoch=1", "loss", 8),
    )
    assert table(pivot([run()], {1: columns}, ["loss", "acc"])) == [
        (0, 0, 1, NA),
        (0, 1, NA, 5),
        (0, NA, 9, NA),
        (1, 0, 8, 6),
    ]


def test_a_loop_of_the_same_name_elsewhere_is_not_an_outer_context():
    # step 0 warm=1      epoch 0   step 0 loss=2
    columns = logged(("step=0", "warm", 1), ("epoch=0/step=0", "loss", 2))
    frame = pivot([run()], {1: columns}, ["warm", "loss"])
    assert shown(frame) == ["epoch", "step", "warm", "loss"]
    assert table(frame) == [(0, 0, NA, 2), (NA, 0, 1, NA)]


def test_a_run_without_any_of_the_names_keeps_one_row():
    columns = {1: logged(("epoch=0", "acc", 1)), 2: logged(("", "other", 1))}
    frame = pivot([run(1), run(2), run(3)], columns, ["acc"])
    assert frame["run_id"].tolist() == ["run-1", "run-2", "run-3"]
    assert table(frame) == [(0, 1), (NA, NA), (NA, NA)]
    assert str(frame["acc"].dtype) == "Int64"


def test_runs_do_not_mix():
    # run 1: lr=0.1, epoch 0 acc=1     run 2: lr=0.2, epochs 0 and 1
    columns = {
        1: logged(("", "lr", 0.1), ("epoch=0", "acc", 1)),
        2: logged(("", "lr", 0.2), ("epoch=0", "acc", 2), ("epoch=1", "acc", 3)),
    }
    frame = pivot([run(2), run(1)], columns, ["lr", "acc"])
    assert frame["run_id"].tolist() == ["run-1", "run-2", "run-2"]
    assert table(frame) == [(0, 0.1, 1), (0, 0.2, 2), (1, 0.2, 3)]


def test_rows_are_in_order_of_time_then_numbers():
    """Runs of one instant are ordered by id; iteration 10 comes after 9."""
    events = [(f"epoch={epoch}", "acc", epoch) for epoch in (10, 9, 1)]
    rows = [run(1, tstamp=START, run_id="b"), run(2, tstamp=START, run_id="a")]
    frame = pivot(rows, {1: logged(*events), 2: logged(*events)}, ["acc"])
    assert frame["run_id"].tolist() == ["a"] * 3 + ["b"] * 3
    assert frame["acc"].tolist() == [1, 9, 10] * 2


def test_loop_values_are_shown_where_they_say_more_than_the_number():
    # for lr in (0.1, 0.2): for step in range(1)
    columns = logged(
        ("lr=0/step=0", "loss", 1),
        ("lr=1/step=0", "loss", 2),
        labels={"lr=0": 0.1, "lr=1": 0.2},
    )
    frame = pivot([run()], {1: columns}, ["loss"])
    assert shown(frame) == ["lr", "lr_value", "step", "loss"]
    assert table(frame) == [(0, 0.1, 0, 1), (1, 0.2, 0, 2)]


def test_a_loop_value_that_is_the_number_is_filled_in():
    """A run over range(1) next to one over ["a"]: what it yielded is the iteration's number."""
    columns = {
        1: logged(("k=0", "x", 1), labels={"k=0": 5}),
        2: logged(("k=0", "x", 2)),
        3: {},
    }
    frame = pivot([run(1), run(2), run(3)], columns, ["x"])
    assert table(frame) == [(0, 5, 1), (0, 0, 2), (NA, NA, NA)]


def test_a_logged_name_that_is_a_dimension():
    # epoch 0: log("epoch", 100)
    columns = logged(("epoch=0", "epoch", 100), ("epoch=0", "acc", 1), ("", "run_id", "mine"))
    frame = pivot([run()], {1: columns}, ["epoch", "acc", "run_id"])
    assert shown(frame) == ["epoch", "epoch_logged", "acc", "run_id_logged"]
    assert table(frame) == [(0, 100, 1, "mine")]


def test_asking_for_a_loop_gives_the_dimension():
    frame = pivot([run()], {1: logged(("epoch=0", "acc", 1))}, ["epoch", "acc", "tstamp", "nth"])
    assert shown(frame) == ["epoch", "nth", "acc"]


def test_loops_of_one_name_inside_each_other():
    columns = logged(("grid=0/grid=1", "acc", 5))
    frame = pivot([run()], {1: columns}, ["acc"])
    assert shown(frame) == ["grid", "grid_2", "acc"]
    assert table(frame) == [(0, 1, 5)]


def test_loops_nested_both_ways_round():
    # a 0  b 1  x=1      b 0  a 1  x=2
    columns = logged(("a=0/b=1", "x", 1), ("b=0/a=1", "x", 2))
    assert table(pivot([run()], {1: columns}, ["x"])) == [(0, 1, 1), (1, 0, 2)]


def test_a_loop_called_like_a_dimension():
    columns = logged(("filename=3", "size", 7))
    frame = pivot([run()], {1: columns}, ["size"])
    assert shown(frame) == ["filename_loop", "size"]
    assert frame["filename"].tolist() == ["train.py"]


def test_an_argument_read_twice_is_one_value():
    # arg("lr") = 0.1, read again   log("x", 1) log("x", 1)
    columns = logged(("", "lr", 0.1), ("", "lr", 0.1), ("", "x", 1), ("", "x", 1), args=("lr",))
    assert table(pivot([run()], {1: columns}, ["lr"])) == [(0.1,)]
    assert table(pivot([run()], {1: columns}, ["lr", "x"])) == [(0, 0.1, 1), (1, 0.1, 1)]


def test_an_argument_with_two_values_keeps_both():
    columns = logged(("", "lr", 1), ("", "lr", True), args=("lr",))
    assert pivot([run()], {1: columns}, ["lr"])["lr"].tolist() == [1, True]


def test_types_hold_over_runs():
    """One run logged an int, another a float; a third one a list makes an object column."""
    columns = {1: logged(("", "x", 1)), 2: logged(("", "x", 0.5)), 3: logged(("", "x", [1, 2]))}
    two = pivot([run(1), run(2)], columns, ["x"])["x"]
    assert (str(two.dtype), two.tolist()) == ("float64", [1.0, 0.5])
    three = pivot([run(1), run(2), run(3)], columns, ["x"])["x"]
    assert three.dtype == object
    assert three.tolist() == [1, 0.5, [1, 2]]


def test_unknown_names_are_null_columns():
    frame = pivot([run()], {1: logged(("", "lr", 0.1))}, ["lr", "acuracy", "lr"])
    assert shown(frame) == ["lr", "acuracy"]
    assert str(frame["acuracy"].dtype) == "float64"


def test_loops_that_must_have_a_column():
    """So that what a table looks like does not depend on which runs are in it."""
    columns = logged(("epoch=0", "acc", 1))
    frame = pivot([run()], {1: columns}, ["acc"], [("epoch", "step"), ("fold",)])
    assert shown(frame) == ["epoch", "step", "fold", "acc"]
    assert table(frame) == [(0, NA, NA, 1)]
    assert [str(dtype) for dtype in frame.dtypes[4:7]] == ["int64", "Int64", "Int64"]


def test_no_runs_at_all():
    frame = pivot([], {}, ["acc"])
    assert [*frame.columns] == ["projid", "tstamp", "filename", "run_id", "acc"]
    assert len(frame) == 0
    assert str(frame["tstamp"].dtype) == "datetime64[us]"
    assert len(summary([], {})) == 0


def test_absurd_iterations_do_not_overflow():
    top = 2**62
    columns = logged(
        (f"a={top}/b={top}", "x", 1), (f"a=0/b={top}", "x", 2), (f"a={top}/b=0", "x", 3)
    )
    assert table(pivot([run()], {1: columns}, ["x"])) == [(0, top, 2), (top, 0, 3), (top, top, 1)]


def test_the_frame_is_the_callers_own():
    columns = logged(("", "x", 1.0))
    frame = pivot([run()], {1: columns}, ["x"])
    frame.loc[0, "x"] = 5.0
    assert columns["x"][0].values[0] == 1.0


def test_summary_is_one_row_per_run():
    """Arguments, then run-level values, the last of each; what was logged in loops is not there."""
    columns = {
        1: logged(
            ("", "note", "a"),
            ("", "lr", 0.1),
            ("", "best", 1),
            ("", "best", 2),
            ("epoch=0", "acc", 5),
            ("epoch=0", "seed", 7),
            args=("lr", "seed"),
        ),
        2: logged(("", "status", "ok")),
    }
    frame = summary([run(2, seconds=None), run(1)], columns)
    assert [*frame.columns] == [
        *("projid", "tstamp", "filename", "run_id", "status", "seconds"),
        *("lr", "seed", "note", "best", "status_logged"),
    ]
    assert frame["run_id"].tolist() == ["run-1", "run-2"]
    first, second = (tuple(row[4:]) for row in frame.itertuples(index=False, name=None))
    assert first[:-1] == ("finished", 2.5, 0.1, 7, "a", 2)
    assert second[-1] == "ok"
    assert all(pd.isna(cell) for cell in second[1:-1])


# --- against an implementation that says the rules one by one ------------------------------------


def brute_force(events: list[Event], names: list[str]) -> list[dict[str, Any]]:
    """One run's rows: {"epoch": 0, "nth": 0, name: value}; no value is no key."""
    values: dict[tuple[Any, str], list[Any]] = {}
    for where, name, value in events:
        if name in names:
            values.setdefault((context(where), name), []).append(value)
    contexts = {where for where, _ in values}

    def inside(outer: Any) -> list[Any]:
        return [each for each in contexts if len(each) > len(outer) and each[: len(outer)] == outer]

    def repeats(where: Any, name: str) -> bool:
        deeper_too = any((each, name) in values for each in inside(where))
        return bool(inside(where)) and len(values[where, name]) == 1 and not deeper_too

    def cell(where: Any, nth: int, name: str) -> Any:
        if (where, name) in values:
            own = values[where, name]
            return own[0] if len(own) == 1 else own[nth] if nth < len(own) else None
        for depth in reversed(range(len(where))):
            outer = where[:depth]
            if (outer, name) in values and repeats(outer, name):
                return values[outer, name][0]
        return None

    rows = []
    for where in contexts:
        own = [name for name in names if (where, name) in values and not repeats(where, name)]
        for nth in range(max((len(values[where, name]) for name in own), default=0)):
            cells = {name: cell(where, nth, name) for name in names}
            rows.append({**dict(where), "nth": nth, **cells})
    return rows or [{"nth": 0}]


PATHS = [(), ("epoch",), ("epoch", "train"), ("epoch", "val"), ("epoch", "val", "batch"), ("val",)]
NAMES = ["a", "b", "c"]


@st.composite
def one_run(draw: st.DrawFn) -> list[Event]:
    path = st.sampled_from(PATHS).flatmap(
        lambda path: st.tuples(*(st.tuples(st.just(loop), st.integers(0, 2)) for loop in path))
    )
    places = draw(st.lists(st.tuples(path, st.sampled_from(NAMES)), max_size=14))
    return [
        ("/".join(f"{loop}={at}" for loop, at in steps), name, serial)
        for serial, (steps, name) in enumerate(places)
    ]


@settings(max_examples=400, deadline=None)
@given(
    st.lists(one_run(), max_size=3),
    st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
)
def test_pivot_does_what_the_rules_say(logs: list[list[Event]], names: list[str]):
    rows = [run(pk) for pk in range(len(logs))]
    frame = pivot(rows, {pk: logged(*log) for pk, log in enumerate(logs)}, names)
    shown_names = shown(frame)
    dims = [name for name in shown_names if name not in [*names, "nth"]]
    wanted = []
    for pk, log in enumerate(logs):
        found = brute_force(log, names)
        found.sort(
            key=lambda row: (
                *((row.get(dim) is None, row.get(dim, -1)) for dim in dims),
                row["nth"],
            )
        )
        wanted += [(f"run-{pk}", *(row.get(name) for name in shown_names)) for row in found]
    got = (
        list(zip(frame["run_id"], *zip(*table(frame), strict=True), strict=True)) if wanted else []
    )
    assert got == wanted
    nth_needed = any(row["nth"] for log in logs for row in brute_force(log, names))
    assert ("nth" in frame) == nth_needed


@settings(max_examples=200, deadline=None)
@given(one_run(), st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
def test_no_value_is_lost(log: list[Event], names: list[str]):
    frame = pivot([run()], {1: logged(*log)}, names)
    for name in names:
        wanted = {value for _, called, value in log if called == name}
        assert set(frame[name].dropna().tolist()) == wanted


@pytest.mark.parametrize("order", [["a", "b"], ["b", "a"]])
def test_outer_loops_come_before_inner_ones(order):
    """Even if the inner one was met first, in a loop of its own."""
    columns = logged(("step=0", "a", 1), ("epoch=0/step=0", "b", 2))
    assert shown(pivot([run()], {1: columns}, order))[:2] == ["epoch", "step"]
