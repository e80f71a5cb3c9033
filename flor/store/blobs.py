"""Columns ↔ bytes: a JSON header, then plain little-endian arrays, then JSON for the rest.

| part | |
|---|---|
| prefix | magic, length of the header, length of the arrays, CRC-32 of all that follows |
| header | per column: name, path, is_arg, n, dtypes of dims, of label codes, and of values |
| arrays | per column: dims by level, label codes by level, values; each padded to 8 bytes |
| tail | JSON: per column, distinct labels by level; values that are no array |

Runs of one script mostly have the same header, which is therefore read once. A dtype `j` says that
the values are JSON in the tail; `o` that an array of kinds tells which of them are not only that.
"""

from __future__ import annotations

import json
import struct
import sys
import zlib
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from flor.model import Kind, StoredValue
from flor.store import cells
from flor.store.columns import Array, Column, Path, make, no_dims

FORMAT = 3

_PREFIX = struct.Struct("<4sIQII")  # the last one is 0: the arrays begin at a multiple of 8
_MAGIC = b"FLP2"
_PAD = b"\0" * 8
_LITTLE = sys.byteorder == "little"


class Damaged(ValueError):
    """Bytes that are not what `encode` gave."""


class Layout(NamedTuple):
    """Where in the arrays of a blob a column is; offsets count 8 bytes."""

    name: str
    path: Path
    is_arg: bool
    size: int
    dims: tuple[tuple[str, int], ...]
    codes: tuple[tuple[str, int] | None, ...]
    values: str
    offset: int
    tail: int  # the column's first entry in the tail


Single = tuple[str, bool, str, int]
"""name, is_arg, dtype and offset of a number."""


def encode(columns: Iterable[tuple[str, Column]]) -> bytes:
    """The bytes of named columns."""
    header: list[list[Any]] = []
    arrays: list[bytes] = []
    tail: list[Any] = []
    for name, column in columns:
        dims = [_narrow(column.dims[:, level]) for level in range(len(column.path))]
        codes = [None if labels is None else _coded(labels, tail) for labels in column.labels]
        kind, values = _plain_values(column.values, tail)
        header.append(
            [
                name,
                column.path,
                column.is_arg,
                len(column.values),
                [item.dtype.str[1:] for item in dims],
                [None if item is None else item.dtype.str[1:] for item in codes],
                kind,
            ]
        )
        for item in (*dims, *codes, values):
            if item is not None:
                arrays.append(_padded(item))
    body = b"".join(arrays)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    rest = json.dumps(tail, separators=(",", ":")).encode() if tail else b""
    content = b"".join((head, body, rest))
    return _PREFIX.pack(_MAGIC, len(head), len(body), zlib.crc32(content), 0) + content


def decode(blob: bytes, wanted: frozenset[str] | None, found: dict[str, list[Column]]) -> None:
    """Add the named columns in `blob`, or those of them that are wanted, to `found`.

    Raises Damaged, before it adds any.
    """
    head_bytes, body_bytes = _checked(blob)
    start = _PREFIX.size + head_bytes
    single, others = _layouts(blob[_PREFIX.size : start], wanted)
    floats = np.frombuffer(blob, "<f8", body_bytes // 8, start)
    if single:
        _decode_single(single, floats, found)
    if not others:
        return
    tail = json.loads(blob[start + body_bytes :]) if body_bytes + start < len(blob) else []
    for layout in others:
        values = _values(layout, floats, tail)
        if layout.path:
            labels = tuple(_labels(layout, floats, tail))
            column = make(layout.path, _dims(layout, floats), labels, values, layout.is_arg)
        else:
            column = make((), no_dims(layout.size), (), values, layout.is_arg)
        found.setdefault(layout.name, []).append(column)


def _checked(blob: bytes) -> tuple[int, int]:
    """The lengths of the header and of the arrays. A database does not check its pages."""
    if len(blob) < _PREFIX.size:
        raise Damaged(f"{len(blob)} bytes")
    magic, head_bytes, body_bytes, checksum, _ = _PREFIX.unpack_from(blob)
    whole = len(blob) >= _PREFIX.size + head_bytes + body_bytes
    if magic != _MAGIC or not whole or zlib.crc32(memoryview(blob)[_PREFIX.size :]) != checksum:
        raise Damaged("the checksum is wrong")
    return head_bytes, body_bytes


def _decode_single(
    single: tuple[Single, ...], floats: Array, found: dict[str, list[Column]]
) -> None:
    """Numbers of the top level that were logged once: the most there are, by far."""
    words = floats.reshape(-1, 1)
    many = len(single) * 4 > len(words)
    float_words: Any = list(words) if many else words  # a list makes all the views at once
    int_words = words.view("<i8")
    dims = no_dims(1)
    for name, is_arg, kind, offset in single:
        values = float_words[offset] if kind == "f8" else int_words[offset]
        column = make((), dims, (), values, is_arg)
        if name in found:
            found[name].append(column)
        else:
            found[name] = [column]


@lru_cache(maxsize=512)
def _layouts(
    head: bytes, wanted: frozenset[str] | None
) -> tuple[tuple[Single, ...], tuple[Layout, ...]]:
    """The layouts of single numbers at the top level, and of all other columns."""
    single: list[Single] = []
    others: list[Layout] = []
    offset = tail = 0
    for name, path, is_arg, count, dim_types, code_types, kind in json.loads(head):
        dims, codes, first = [], [], tail
        for dtype in dim_types:
            dims.append((dtype, offset))
            offset += _words(dtype, count)
        for dtype in code_types:
            codes.append(None if dtype is None else (dtype, offset))
            if dtype is not None:
                offset += _words(dtype, count)
                tail += 1
        if wanted is None or name in wanted:
            if count == 1 and not path and kind in ("f8", "i8"):
                single.append((name, is_arg, kind, offset))
            else:
                places = (tuple(dims), tuple(codes), kind, offset, first)
                others.append(Layout(name, tuple(path), is_arg, count, *places))
        if kind != "j":
            offset += _words("u1" if kind == "o" else kind, count)
        tail += kind in "jo"
    return tuple(single), tuple(others)


def _words(dtype: str, count: int) -> int:
    return (int(dtype[1:]) * count + 7) // 8


def _array(floats: Array, dtype: str, offset: int, count: int) -> Array:
    words = floats[offset : offset + _words(dtype, count)]
    return words.view(dtype if dtype[1:] == "1" else f"<{dtype}")[:count]


def _dims(layout: Layout, floats: Array) -> Array:
    dims = np.empty((layout.size, len(layout.path)), np.int64)
    for level, (dtype, offset) in enumerate(layout.dims):
        dims[:, level] = _array(floats, dtype, offset, layout.size)
    return dims


def _labels(layout: Layout, floats: Array, tail: list[Any]) -> Iterator[Array | None]:
    at = layout.tail
    for code in layout.codes:
        if code is None:
            yield None
            continue
        distinct = np.empty(len(tail[at]), object)
        distinct[:] = tail[at]
        yield distinct[_array(floats, *code, layout.size)]
        at += 1


def _values(layout: Layout, floats: Array, tail: list[Any]) -> Array:
    if layout.values in "jo":
        return _objects(layout, floats, tail)
    return _array(floats, layout.values, layout.offset, layout.size)


def _objects(layout: Layout, floats: Array, tail: list[Any]) -> Array:
    at = layout.tail + sum(code is not None for code in layout.codes)
    values = np.empty(layout.size, object)
    payload = tail[at]
    if layout.values == "o":
        kinds = _array(floats, "u1", layout.offset, layout.size)
        payload = [_revived(kind, item) for kind, item in zip(kinds.tolist(), payload, strict=True)]
    for index, item in enumerate(payload):  # a slice assignment would unpack lists
        values[index] = item
    return values


def _revived(kind: int, item: Any) -> Any:
    if kind == Kind.OBJECT:
        return StoredValue.from_json(item)
    return cells.moment(item) if kind == Kind.DATETIME else item


def _plain_values(values: Array, tail: list[Any]) -> tuple[str, Array | None]:
    """The dtype and array of values; what is no array goes to the tail."""
    if values.dtype == np.float64:
        return "f8", values
    if values.dtype == np.int64:
        return "i8", values
    if values.dtype == np.bool_:
        return "b1", values
    kinds = np.zeros(len(values), np.uint8)
    payload = values.tolist()
    for index, item in enumerate(payload):
        if isinstance(item, StoredValue):
            kinds[index], payload[index] = Kind.OBJECT, item.to_json()
        elif isinstance(item, datetime):
            kinds[index], payload[index] = Kind.DATETIME, item.isoformat()
    tail.append(payload)
    return ("o", kinds) if kinds.any() else ("j", None)


def _coded(labels: Array, tail: list[Any]) -> Array:
    """Label numbers; the distinct labels go to the tail. One object is one label."""
    numbers: dict[int, int] = {}
    distinct: list[Any] = []
    codes = np.empty(len(labels), np.int64)
    for index, label in enumerate(labels.tolist()):
        number = numbers.get(id(label))
        if number is None:
            number = numbers[id(label)] = len(distinct)
            distinct.append(label)
        codes[index] = number
    tail.append(distinct)
    return _narrow(codes)


def _narrow(numbers: Array) -> Array:
    """The same numbers, none of which is negative, in the fewest bytes."""
    highest = int(numbers.max()) if len(numbers) else 0
    for dtype, limit in (("u1", 2**8), ("<u2", 2**16), ("<u4", 2**32)):
        if highest < limit:
            return numbers.astype(dtype)
    return numbers


def _padded(array: Array) -> bytes:
    content = (array if _LITTLE else array.astype(array.dtype.newbyteorder("<"))).tobytes()
    return content + _PAD[: -len(content) % 8]
