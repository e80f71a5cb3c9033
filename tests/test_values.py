"""flor.record.values: any Python value to JSON."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from flor.objects import ObjectStore
from flor.record.values import Unstorable, as_text, encode


class Level(enum.IntEnum):
    HIGH = 3


class Meters(float):
    pass


@dataclasses.dataclass
class Point:
    x: float
    y: float


def encoded(value: Any) -> Any:
    text, kind = encode(value, lambda data: str(len(data)))
    assert "\n" not in text
    return (json.loads(text), kind) if kind else json.loads(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_values)
def test_json_values_come_back(value: Any) -> None:
    assert encoded(value) == value


@given(st.floats())
def test_floats_come_back_exactly(value: float) -> None:
    back = encoded(value)
    assert type(back) is float
    assert math.isnan(back) if math.isnan(value) else back.hex() == value.hex()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float64(0.1), 0.1),
        (np.float32("nan"), math.nan),
        (np.int8(-3), -3),
        (np.bool_(True), True),
        (np.array(2), 2),
        (np.str_("a"), "a"),
        (Meters(1.5), 1.5),
        (Level.HIGH, 3),
        (Path("a/b"), "a/b"),
        (decimal.Decimal("1.5"), 1.5),
        ((1, (2, 3)), [1, [2, 3]]),
        ({3, 1, 2}, [1, 2, 3]),
        (range(3), [0, 1, 2]),
        ({1: "a"}, {"1": "a"}),
        ({"loss": np.float32(0.5), "hist": np.arange(3)}, {"loss": 0.5, "hist": [0, 1, 2]}),
        (Point(1, 2), {"x": 1, "y": 2}),
        (datetime.date(2026, 1, 2), ("2026-01-02", "datetime")),
        (datetime.datetime(2026, 1, 2, 3, 4), ("2026-01-02T03:04:00", "datetime")),
        (np.datetime64("2026-01-02"), ("2026-01-02", "datetime")),
    ],
)
def test_kindred_types(value: Any, expected: Any) -> None:
    found = encoded(value)
    assert found == expected or (found != found and expected != expected)


def test_arrays_are_objects_with_a_preview(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path)
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    text, kind = encode(array, store.put)
    stored = json.loads(text)
    assert kind == "object"
    assert (stored["media"], stored["type"]) == ("npy", "ndarray")
    expected = {"shape": [2, 3], "dtype": "float32", "min": 0.0, "max": 5.0, "mean": 2.5}
    assert stored["preview"] == expected
    import io

    assert (np.load(io.BytesIO(store.get(stored["digest"]))) == array).all()


def test_images_tables_bytes_and_long_lists_are_objects() -> None:
    assert encoded(Image.new("RGB", (4, 3)))[0]["preview"] == {"shape": [3, 4], "dtype": "RGB"}
    assert encoded(pd.DataFrame({"a": [1]}))[0]["media"] == "json"
    assert encoded(b"abc")[0]["size_bytes"] == 3
    assert encoded(list(range(100_000)))[1] == "object"
    assert encoded(np.array([], dtype=float))[0]["preview"] == {"shape": [0], "dtype": "float64"}


@pytest.mark.parametrize(
    "value", [object(), [object()], {"a": np.zeros(2000)}, 1j, np.array([None])]
)
def test_what_cannot_be_stored(value: Any) -> None:
    with pytest.raises(Unstorable):
        encode(value, lambda data: "")
    text, kind = as_text(value)
    assert kind == "text"
    assert json.loads(text)


def test_a_list_that_holds_itself_is_unstorable() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(Unstorable, match="nested"):
        encode(loop, lambda data: "")
