"""A value as kind, num and txt."""

from __future__ import annotations

import io
import json
import math
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flor.errors import ObjectMissing
from flor.model import Kind, StoredValue
from flor.objects import ObjectStore
from flor.store import cells
from flor.store.cells import Tagged

NUMBERS = st.integers() | st.integers(-(10**400), 10**400) | st.floats() | st.booleans()
TEXTS = (st.text(st.characters()) | st.text('a\0\ud800\udfff\u00e9\U0001f600\\"')).map(
    lambda text: str(json.loads(json.dumps(text)))  # JSON joins two halves of one character
)
JSON = st.recursive(
    st.none() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=6,
)


def same(one: Any, other: Any) -> bool:
    """Equal, of one type, with NaN equal to itself and 0.0 not to -0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return repr(one) == repr(other)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


@given(JSON)
def test_round_trip(value: Any) -> None:
    kind, num, txt = cells.cell(value)

    assert same(cells.value(kind, num, txt), value)
    if txt is not None:
        assert "\0" not in txt
        txt.encode()


@given(st.lists(JSON, min_size=1))
def test_columns_are_the_cells(values: list[Any]) -> None:
    found = list(zip(range(len(values)), *cells.columns(values), strict=False))

    assert [(i, *map(repr, rest)) for i, *rest in found] == [
        (i, *map(repr, cells.cell(value))) for i, value in enumerate(values)
    ] or {type(value) for value in values} == {float}
    assert all(same(cells.value(*rest), values[i]) for i, *rest in found)


def test_tagged_values() -> None:
    stored = StoredValue("npy", "ndarray", "ab" * 32, 9, {"shape": [3]})

    assert cells.value(*cells.cell(Tagged(stored.to_json(), "object"))) == stored
    assert cells.value(*cells.cell(Tagged("<\ud800>", "text"))) == "<\ud800>"
    moment = datetime(2026, 11, 18, 19, 3, tzinfo=timezone.utc)
    assert cells.value(*cells.cell(Tagged("2026-11-18T19:03:00Z", "datetime"))) == moment
    assert cells.value(*cells.cell(Tagged("19:03", "datetime"))) == "19:03"


def test_nan_may_be_null() -> None:
    assert math.isnan(cells.value(Kind.FLOAT, None, None))


def test_text_stays_readable() -> None:
    assert cells.cell("é😀") == (Kind.STR, None, "é😀")
    assert cells.cell({"é": ["😀"]}) == (Kind.JSON, None, '{"é": ["😀"]}')
    assert cells.clean("a\0\ud800") == "a\\x00\\ud800"


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


@pytest.mark.parametrize("depth", [101, 300, 900, 5000])
def test_what_is_nested_too_deeply_becomes_text(depth: int) -> None:
    kind, num, txt = cells.cell(nested(depth))
    assert (kind, num) == (Kind.TEXT, None)
    assert "nested" in txt
    assert len(txt) < 100
    assert cells.too_deep([nested(depth), 1], [kind, Kind.INT]) == 1

    kind, _, txt = cells.cell(Tagged({"preview": nested(depth)}, "object"))
    assert (kind, "nested" in txt) == (Kind.TEXT, True)


def test_depth_counts_levels_not_brackets() -> None:
    assert cells.cell(nested(cells.MAX_DEPTH))[0] == Kind.JSON
    assert cells.cell([[i] for i in range(1000)])[0] == Kind.JSON
    assert cells.cell(["[" * 500, '"[' * 500, "\\"])[0] == Kind.JSON
    assert cells.nesting(json.dumps(["]" * 99, nested(150)])) == 151


def test_payload_must_fit_its_kind() -> None:
    stored = StoredValue("npy", "ndarray", "ab" * 32, 9).to_json()

    assert cells.is_tag("object", stored)
    assert not cells.is_tag("object", stored | {"more": 1})
    for damage in ({"size_bytes": "9"}, {"preview": []}, {"preview": {"shape": 3}}, {"type": 1}):
        assert not cells.is_tag("object", stored | damage)
    assert not cells.is_tag("datetime", 5)
    assert not cells.is_tag(["text"], "x")


def test_load_value(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path)
    buffer = io.BytesIO()
    np.save(buffer, np.arange(6).reshape(2, 3))
    contents = {"npy": buffer.getvalue(), "json": json.dumps({"a": [1]}).encode(), "png": b"\x89P"}
    loaded = {
        media: cells.load_value(StoredValue(media, "x", store.put(content), len(content)), store)
        for media, content in contents.items()
    }

    assert loaded["npy"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert loaded["json"] == {"a": [1]}
    assert loaded["png"] == b"\x89P"
    with pytest.raises(ObjectMissing):
        cells.load_value(StoredValue("npy", "x", "ab" * 32, 1), store)


def test_pickle_is_refused(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path)
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"code": 1}], dtype=object), allow_pickle=True)

    with pytest.raises(ValueError, match="allow_pickle"):
        cells.load_value(StoredValue("npy", "x", store.put(buffer.getvalue()), 1), store)
