"""Logged values as typed arrays: what one column of a dataframe is made of.

Pure: numpy and pandas only. A column's type follows from all of its values:

| values | dtype, complete | with missing cells |
|---|---|---|
| float | `float64` | `float64`, `NaN` |
| int | `int64` | `Int64` |
| bool | `bool` | `boolean` |
| str | `str` | `str`, `NaN` |
| naive datetime | `datetime64[us]` | the same, `NaT` |
| int and float, every int exact in a float | `float64` | `float64`, `NaN` |
| no value at all | | `float64`, all `NaN` |
| anything else (lists, objects, ints beyond 64 bits, a mixture) | `object` | `object`, `None` |

A logged `None` counts as missing in all of them, and does not make a numeric column an object one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

STRING: Any = "str" if int(pd.__version__.split(".")[0]) >= 3 else "string"
EXACT = 2**53  # beyond it, a float does not hold every int
_DTYPES = {float: np.float64, int: np.int64, bool: np.bool_}


@dataclass(frozen=True)
class Cells:
    """All the values of one column, before they are placed on rows."""

    values: Any  # a numpy array, or a pandas string array
    null: Bools | None = None  # where None was logged, in ints and bools

    def take(self, at: Ints) -> Any:
        """The values at these positions, as a column for a DataFrame; -1 is a missing cell."""
        if not isinstance(self.values, np.ndarray):
            return self.values.take(at, allow_fill=True)
        if len(self.values) == 0:
            return np.full(len(at), np.nan)
        missing = at < 0
        placed = self.values[at]
        kind = placed.dtype.kind
        if kind in "ib":
            if self.null is not None:
                missing |= self.null[at]
            return masked(placed, missing) if missing.any() else placed
        if missing.any():
            placed[missing] = {"f": np.nan, "M": np.datetime64("NaT", "us"), "O": None}[kind]
        # A bare object array would be guessed at again when the DataFrame is built.
        return pd.Series(placed, dtype=object) if kind == "O" else placed


def masked(values: Array, missing: Bools) -> Any:
    """Ints or bools with missing cells."""
    if values.dtype.kind == "b":
        return pd.arrays.BooleanArray(values, missing)
    return pd.arrays.IntegerArray(values, missing)


def strings(texts: Sequence[str | None] | Array) -> Any:
    """Texts as pandas keeps them; None is missing."""
    objects = np.empty(len(texts), dtype=object)
    objects[:] = texts
    return pd.array(objects, dtype=STRING)


def from_items(items: Sequence[Any]) -> Array:
    """Python values as an array: of their type if it is one that numpy has, else of objects."""
    types = set(map(type, items))
    dtype: Any = _DTYPES.get(types.pop(), object) if len(types) == 1 else object
    if dtype is not object:
        try:
            return np.array(items, dtype)
        except OverflowError:  # an int beyond 64 bits
            pass
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


def unify(pieces: Sequence[Array]) -> Cells:
    """The values of all pieces, in order, in the narrowest type that holds each one exactly."""
    kinds = {piece.dtype.kind for piece in pieces}
    if not kinds:
        return Cells(np.empty(0))
    if len(kinds) == 1 and kinds <= {"f", "i", "b"}:
        return Cells(np.concatenate(pieces))
    if kinds == {"f", "i"}:
        ints = np.concatenate([piece for piece in pieces if piece.dtype.kind == "i"])
        if len(ints) == 0 or (ints.min() >= -EXACT and ints.max() <= EXACT):
            return Cells(np.concatenate([piece.astype(np.float64) for piece in pieces]))
    return _from_objects(np.concatenate([piece.astype(object) for piece in pieces]))


def _from_objects(objects: Array) -> Cells:
    items = objects.tolist()
    types = set(map(type, items))
    none = type(None) in types
    types.discard(type(None))
    if types == {float} or (types == {int, float} and all(map(_exact, items))):
        return Cells(np.array([np.nan if item is None else item for item in items], np.float64))
    if types == {str}:
        return _from_strings(objects)
    if types == {datetime} and all(item is None or item.tzinfo is None for item in items):
        return Cells(np.array(items, dtype="datetime64[us]"))
    if types in ({int}, {bool}):
        null = np.array([item is None for item in items], np.bool_) if none else None
        filler = types.pop()()
        filled = from_items([filler if item is None else item for item in items])
        return Cells(objects) if filled.dtype == object else Cells(filled, null)
    return Cells(objects)


def _exact(item: Any) -> bool:
    return not isinstance(item, int) or -EXACT <= item <= EXACT


def _from_strings(objects: Array) -> Cells:
    try:
        return Cells(strings(objects))
    except ValueError:  # half a surrogate pair, where pandas keeps its strings as UTF-8
        return Cells(objects)
