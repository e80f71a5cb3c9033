"""A logged value as three columns that both databases hold without loss: kind, num, txt.

| kind | num | txt |
|---|---|---|
| NONE | | |
| BOOL | 0 or 1 | |
| INT | the number | its digits, beyond 2**53 |
| FLOAT | the number; NULL may stand for NaN | |
| JSON, OBJECT | | JSON |
| STR, TEXT, DATETIME | 1 if txt is quoted | the text, or its JSON if a database would refuse it |
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import repeat
from typing import Any, NamedTuple

from flor.model import Kind, StoredValue
from flor.objects import ObjectStore

EXACT = 2**53  # beyond it a float64 no longer holds every whole number

Cell = tuple[int, Any, Any]

_NAMED_KINDS = {"object": Kind.OBJECT, "text": Kind.TEXT, "datetime": Kind.DATETIME}


class Tagged(NamedTuple):
    """A journal's payload whose kind the JSON alone does not tell."""

    payload: Any
    kind: str


def columns(
    values: Sequence[Any],
) -> tuple[Iterable[int], Iterable[Any], Iterable[Any]]:
    """The kinds, nums and txts of journal values. Raises ValueError for a payload out of place."""
    if set(map(type, values)) == {float}:
        return repeat(int(Kind.FLOAT)), values, repeat(None)
    kinds, nums, texts = zip(*map(cell, values), strict=True)
    return kinds, nums, texts


def cell(value: Any) -> Cell:
    """The cell of one value as the journal has it: JSON, or Tagged."""
    kind = type(value)
    if kind is float:
        return Kind.FLOAT, value, None
    if kind is str:
        return _text_cell(Kind.STR, value)
    if kind is bool:
        return Kind.BOOL, float(value), None
    if kind is int:
        return _int_cell(value)
    if value is None:
        return Kind.NONE, None, None
    if kind is Tagged:
        return _tagged_cell(value)
    try:
        return Kind.JSON, None, to_json(value)
    except RecursionError:
        return Kind.TEXT, None, "(nested too deeply to be kept)"


def is_tag(kind: object, payload: object) -> bool:
    """Whether a record's fourth and fifth element make sense together."""
    if kind == "object":
        return (
            isinstance(payload, dict) and payload.keys() == StoredValue.__dataclass_fields__.keys()
        )
    return kind in ("text", "datetime") and isinstance(payload, str)


def value(kind: int, num: Any, txt: Any) -> Any:
    """The value in a cell. A date that does not parse is its text."""
    if kind == Kind.FLOAT:
        return float("nan") if num is None else float(num)
    if kind == Kind.INT:
        return int(num) if txt is None else int(txt)
    if kind in (Kind.STR, Kind.TEXT):
        return json.loads(txt) if num else txt
    if kind == Kind.BOOL:
        return bool(num)
    if kind == Kind.JSON:
        return json.loads(txt)
    if kind == Kind.OBJECT:
        return StoredValue.from_json(json.loads(txt))
    if kind == Kind.DATETIME:
        return moment(json.loads(txt) if num else txt)
    return None


def moment(text: str) -> datetime | str:
    """A date and time, or the text where Python's own type does not hold it."""
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return text


def to_json(data: Any) -> str:
    """JSON that any database takes: readable, or escaped where it holds lone surrogates."""
    text = json.dumps(data, ensure_ascii=False)
    return text if _is_plain(text) else json.dumps(data)


def clean(text: str) -> str:
    """A name or path that any database takes; what it would refuse is written as an escape."""
    if _is_plain(text):
        return text
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def load_value(stored: StoredValue, store: ObjectStore) -> Any:
    """The logged value itself: an array, a PNG's bytes, or what the JSON holds.

    Raises ObjectMissing if its bytes are not here.
    """
    content = store.get(stored.digest)
    if stored.media == "npy":
        import io

        import numpy as np

        return np.load(io.BytesIO(content), allow_pickle=False)
    if stored.media == "json":
        return json.loads(content)
    return content


def _text_cell(kind: Kind, text: str) -> Cell:
    return (kind, None, text) if _is_plain(text) else (kind, 1.0, json.dumps(text))


def _int_cell(number: int) -> Cell:
    if -EXACT <= number <= EXACT:
        return Kind.INT, number, None
    try:
        return Kind.INT, float(number), str(number)
    except OverflowError:
        return Kind.INT, float("inf") if number > 0 else float("-inf"), str(number)


def _tagged_cell(tagged: Tagged) -> Cell:
    kind = _NAMED_KINDS[tagged.kind]
    if kind == Kind.OBJECT:
        return kind, None, to_json(tagged.payload)
    return _text_cell(kind, tagged.payload)


def _is_plain(text: str) -> bool:
    if "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
