"""A logged value as three columns that both databases hold without loss: kind, num, txt.

| kind | num | txt |
|---|---|---|
| NONE | | |
| BOOL | 0 or 1 | |
| INT | the number | its digits, beyond 2**53 |
| FLOAT | the number; NULL may stand for NaN | |
| JSON, OBJECT | | JSON, nested no deeper than MAX_DEPTH |
| STR, TEXT, DATETIME | 1 if txt is quoted | the text, or its JSON if a database would refuse it |
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import repeat
from typing import Any, NamedTuple

from flor.model import Kind, StoredValue
from flor.objects import ObjectStore

EXACT = 2**53  # beyond it a float64 no longer holds every whole number
MAX_DEPTH = 100  # of lists and dicts; what is nested deeper becomes TEXT
SHOWN_CHARACTERS = 40  # of such a value

_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]')

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
    return _json_cell(Kind.JSON, value)


def too_deep(values: Sequence[Any], kinds: Iterable[int]) -> int:
    """How many of the values became TEXT because they are nested too deeply."""
    if not isinstance(kinds, Sequence) or Kind.TEXT not in kinds:
        return 0
    pairs = zip(values, kinds, strict=True)
    return sum(kind == Kind.TEXT and not is_text(value) for value, kind in pairs)


def is_text(value: Any) -> bool:
    return type(value) is Tagged and value.kind == "text"


def is_tag(kind: object, payload: object) -> bool:
    """Whether a record's fourth and fifth element make sense together."""
    if kind == "object":
        return (
            isinstance(payload, dict)
            and payload.keys() == StoredValue.__dataclass_fields__.keys()
            and all(isinstance(payload[key], str) for key in ("media", "type", "digest"))
            and type(payload["size_bytes"]) is int
            and isinstance(payload["preview"], dict)
            and isinstance(payload["preview"].get("shape"), (list, type(None)))
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
        try:
            return json.loads(txt)
        except RecursionError:  # a caller that is itself deep inside some recursion
            return txt
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
    """JSON that any database takes: readable, or escaped where it holds lone surrogates.

    Raises RecursionError for what is nested by hundreds of levels.
    """
    text = json.dumps(data, ensure_ascii=False)
    return text if is_plain(text) else json.dumps(data)


def clean(text: str) -> str:
    """A name or path that any database takes; what it would refuse is written as an escape."""
    if is_plain(text):
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
    return (kind, None, text) if is_plain(text) else (kind, 1.0, json.dumps(text))


def _json_cell(kind: Kind, data: Any) -> Cell:
    try:
        text = to_json(data)
    except RecursionError:  # json reads deeper values than it writes
        return Kind.TEXT, None, "(nested too deeply to be kept)"
    depth = nesting(text)
    if depth <= MAX_DEPTH:
        return kind, None, text
    return Kind.TEXT, None, f"{text[:SHOWN_CHARACTERS]}… (nested {depth} levels deep)"


def nesting(text: str) -> int:
    """How deep the lists and dicts in some JSON are nested."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return 0  # not deeper than that, which is all that anybody asks
    depth = deepest = 0
    for match in _BRACKETS.finditer(text):
        edge = match[0]
        if edge in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif edge in "]}":
            depth -= 1
    return deepest


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
        return _json_cell(kind, tagged.payload)
    return _text_cell(kind, tagged.payload)


def is_plain(text: str) -> bool:
    """Whether every database takes the text as it is."""
    if "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
