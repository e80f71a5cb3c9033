"""Logged values as typed columns."""

from datetime import datetime, timezone
from typing import Any

import numpy as np
import pandas as pd
import pytest

from flor.store.arrays import STRING, strings, unify

DAY = datetime(2026, 11, 18)


def objects(*items: Any) -> np.ndarray:
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


def placed(pieces: list[np.ndarray], at: list[int]) -> pd.Series:
    return pd.DataFrame({"x": unify(pieces).take(np.array(at))})["x"]


@pytest.mark.parametrize(
    ("piece", "complete", "with_holes"),
    [
        (np.array([0.5, 1.5]), "float64", "float64"),
        (np.array([1, 2]), "int64", "Int64"),
        (np.array([True, False]), "bool", "boolean"),
        (objects("a", "b"), STRING, STRING),
        (objects(DAY, DAY), "datetime64[us]", "datetime64[us]"),
        (objects([1], {"a": 1}), "object", "object"),
        (objects(2**64, 1), "object", "object"),
        (objects(1, True), "object", "object"),
        (objects("a", 1), "object", "object"),
        (objects("a", float("nan")), "object", "object"),
        (objects(DAY, DAY.astimezone(timezone.utc)), "object", "object"),
    ],
)
def test_types(piece, complete, with_holes):
    """A column's dtype follows from its values and from whether a row has none."""
    assert str(placed([piece], [0, 1]).dtype) == complete
    holed = placed([piece], [0, -1, 1])
    assert str(holed.dtype) == with_holes
    assert holed.isna().tolist()[1]
    assert holed[0] == piece[0]


def test_ints_and_floats_are_floats_where_that_is_exact():
    """1 and 0.5 make floats; 2**53 + 1 would lose its last digit, so nothing is converted."""
    assert placed([np.array([1, 2]), np.array([0.5])], [0, 1, 2]).tolist() == [1.0, 2.0, 0.5]
    exact = placed([np.array([2**53 + 1]), np.array([0.5])], [0, 1])
    assert exact.dtype == object
    assert exact.tolist() == [2**53 + 1, 0.5]
    assert str(placed([objects(1, 0.5)], [0, 1]).dtype) == "float64"
    assert placed([objects(2**70, 0.5)], [0, 1]).tolist() == [2**70, 0.5]


@pytest.mark.parametrize(
    ("items", "dtype"),
    [
        ((0.5, None), "float64"),
        ((1, None), "Int64"),
        ((True, None), "boolean"),
        (("a", None), STRING),
        ((DAY, None), "datetime64[us]"),
        (([1], None), "object"),
        ((None, None), "object"),
    ],
)
def test_a_logged_none_is_missing_and_keeps_the_type(items, dtype):
    column = placed([objects(*items)], [1, 0])
    assert str(column.dtype) == dtype
    assert column.isna().tolist()[0]


def test_nan_and_infinities_stay():
    column = placed([np.array([np.nan, np.inf, -np.inf, -0.0])], [0, 1, 2, 3])
    assert repr(column.tolist()) == "[nan, inf, -inf, -0.0]"


def test_no_values_at_all():
    """A name that nobody logged is a column of nulls."""
    column = placed([], [-1, -1])
    assert column.dtype == np.float64
    assert column.isna().all()


def test_pieces_of_different_kinds_keep_their_values():
    pieces = [np.array([0.5]), objects("late", None), np.array([3]), np.array([True])]
    column = placed(pieces, [0, 1, 2, 3, 4])
    assert column.tolist() == [0.5, "late", None, 3, True]
    assert [type(item) for item in column] == [float, str, type(None), int, bool]


def test_half_a_surrogate_pair_is_kept():
    assert placed([objects("\ud800", "b")], [0, 1]).tolist() == ["\ud800", "b"]


def test_lists_stay_lists_of_one_cell():
    """Lists of one length are not mistaken for a second dimension."""
    assert placed([objects([1, 2], [3, 4])], [0, 1]).tolist() == [[1, 2], [3, 4]]
    assert len(strings(["ab", None])) == 2
