"""Reads journals: bytes → lines, as far as they were written, whatever they hold.

Nothing here knows of the database, and no content of a file raises.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

CHUNK_BYTES = 4 * 1024 * 1024
LINE_BYTES = 64 * 1024 * 1024  # a longer line is skipped
UNPACKED_BYTES = 4 * 1024**3  # of one payload; the rest is left out
SLICE_BYTES = 16 * 1024  # of a payload at a time: zlib copies what it has not used yet
FIRST_BYTES = b"[{ \t\r"  # of a line that may be an array or an object
MAX_DIGITS = 4300  # Python refuses to read longer numbers
MAIN = "journal.jsonl"

_RUN_ID = re.compile(r"(\d{8}-\d{6})-")


class Source(Protocol):
    """What chunks are read from: a file, or an unpacked payload."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class Chunk:
    """Some whole lines of one journal, in order.

    `records` are the arrays and `objects` the objects. An object may be defined after a record in
    the same chunk but never after one that refers to it.
    """

    records: list[list[Any]]
    objects: list[dict[str, Any]]
    bad_lines: int
    end: int  # offset after the last line


def chunks(
    source: Source, offset: int = 0, size: int = CHUNK_BYTES, line_bytes: int = LINE_BYTES
) -> Iterator[Chunk]:
    """Parse what `source` gives, which starts at `offset`; a torn last line is left for later.

    A payload from the branch may hold the journals of child processes behind the main one: a
    chunk never spans them, and begins with the `child` line. A line of more than `line_bytes` is
    a bad line, whose bytes are not kept.
    """
    parts: list[bytes] = []  # of the line that has not ended
    part_bytes = 0
    while block := source.read(size):
        lines, newline, rest = block.rpartition(b"\n")
        if newline:
            too_long, lines = part_bytes > line_bytes, lines + newline
            offset += part_bytes + len(lines)
            if too_long:
                lines = lines[lines.index(newline) + 1 :]
            items, bad_lines = parse(b"".join([*parts, lines]))
            yield from _split(items, bad_lines + too_long, offset)
            parts, part_bytes = [], 0
        parts.append(rest)
        part_bytes += len(rest)
        if part_bytes > line_bytes:
            parts = []


def parse(lines: bytes) -> tuple[list[Any], int]:
    """The arrays and objects of whole lines, and how many other lines there were."""
    count = lines.count(b"\n")
    if not count:
        return [], 0
    try:
        # A newline cannot stand inside a JSON string, so no two torn lines make a whole one.
        items = json.loads("[" + lines[:-1].replace(b"\n", b",\n").decode() + "]")
    except (ValueError, RecursionError):
        items = []
    if len(items) != count:
        items = [item for item in map(_parse_line, lines.split(b"\n")) if item is not None]
    if not set(map(type, items)) <= {list, dict}:
        items = [item for item in items if type(item) in (list, dict)]
    return items, count - len(items)


def _parse_line(line: bytes) -> Any:
    if not line or line[0] not in FIRST_BYTES:  # there may be millions
        return None
    try:
        return json.loads(line.decode(), parse_int=_integer)
    except (ValueError, RecursionError):
        return None


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= MAX_DIGITS else digits


def _split(items: list[Any], bad_lines: int, end: int) -> Iterator[Chunk]:
    objects = [item for item in items if type(item) is dict]
    if not objects or not any(item.get("t") == "child" for item in objects):
        records = [item for item in items if type(item) is list] if objects else items
        yield Chunk(records, objects, bad_lines, end)
        return
    starts = [k for k, item in enumerate(items) if type(item) is dict and item.get("t") == "child"]
    for first, after in zip([0, *starts], [*starts, len(items)], strict=True):
        part = items[first:after]
        if part or first == 0:
            yield Chunk(
                [item for item in part if type(item) is list],
                [item for item in part if type(item) is dict],
                bad_lines if first == 0 else 0,
                end,
            )


class Unpacked:
    """The content of a gzip payload, as far as it is intact and no more than `limit` bytes."""

    def __init__(self, payload: bytes, limit: int = UNPACKED_BYTES) -> None:
        self._payload = memoryview(payload)
        self._position = 0  # the engine was given what is before it
        self._waiting = b""  # given to the engine and not used yet
        self._left = limit
        self._engine = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self.intact = True

    def read(self, size: int, /) -> bytes:
        found = b""
        while not found and self.intact and not (self._engine.eof and not self._next_member()):
            try:
                found = self._engine.decompress(self._waiting or self._slice(), size)
            except zlib.error:
                self.intact = False
                break
            self._waiting = self._engine.unconsumed_tail
            if not found and not self._engine.eof and self._is_used_up():
                self.intact = False  # it ends in the middle
        if len(found) > self._left:
            found, self.intact = found[: self._left], False
        self._left -= len(found)
        return found

    def _slice(self) -> memoryview:
        part = self._payload[self._position : self._position + SLICE_BYTES]
        self._position += len(part)
        return part

    def _is_used_up(self) -> bool:
        return not self._waiting and self._position == len(self._payload)

    def _next_member(self) -> bool:
        """gzip files may be written one behind the other."""
        self._waiting = self._engine.unused_data
        if self._is_used_up():
            return False
        self._engine = zlib.decompressobj(zlib.MAX_WBITS | 16)
        return True


def journal_files(folder: Path) -> list[str]:
    """The journal files of a run: the main one, then those of its children by age."""
    with os.scandir(folder) as entries:
        children = sorted(
            (entry.stat().st_mtime_ns, entry.name)
            for entry in entries
            if entry.name.startswith("child-") and entry.name.endswith(".jsonl")
        )
    main = [MAIN] if (folder / MAIN).is_file() else []
    return main + [name for _, name in children]


def started_at(run_id: str) -> datetime | None:
    """When a run began, as far as its id tells."""
    match = _RUN_ID.match(run_id)
    try:
        return datetime.strptime(match[1], "%Y%m%d-%H%M%S") if match else None
    except ValueError:
        return None
