"""Code cells of a notebook as one module, and back. Pure.

The cells stand one below the other, with a comment between that is in none of them. Magics are made
comments, or a number where a block needs a statement. Nothing of the file changes but the source of
the cell that gets a statement: the rest of its JSON is taken over as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from flor.errors import BadSource

SPACE = re.compile(r"[ \t\r\n]*")
MAGIC = re.compile(r"^([ \t]*)([%!?].*|[^\s#'\"][^#'\"\n]*\?\??[ \t]*)$", re.MULTILINE)
ASSIGNED = re.compile(r"^(\s*[\w, .\[\]]+=\s*)([%!].*)$", re.MULTILINE)
PIECE = re.compile(
    r"(?P<string>\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3}"
    r"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')"
    r"|(?P<comment>#[^\n]*)|(?P<joint>\\\n)|(?P<newline>\n)|(?P<other>.)",
    re.DOTALL,
)
OTHER = re.compile(r"\s*%%(?!time\b|timeit\b|capture\b|prun\b)")  # a cell in another language


@dataclass(frozen=True)
class Cell:
    """A code cell: where its source is in the file, and in the module."""

    number: int  # among all cells, from 1
    text: str
    begin: int  # of its `source` in the JSON
    end: int
    start: int  # of its text in the module


class Notebook:
    """A notebook's text. Raises BadSource."""

    def __init__(self, content: str) -> None:
        self.content = content
        self.cells: list[Cell] = []
        mark = "# %% next cell"
        while mark in content:
            mark += " %%"
        self._between, start = f"\n\n{mark}\n\n", 0
        try:
            for number, (text, begin, end) in enumerate(_sources(content), 1):
                if text is not None:
                    self.cells.append(Cell(number, text, begin, end, start))
                    start += len(text) + len(self._between)
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise BadSource(f"the notebook cannot be read: {error}") from None

    @property
    def module(self) -> str:
        """Its code; lines that are no Python are comments."""
        return self._between.join(_masked(cell.text) for cell in self.cells) + "\n"

    def line(self, cell: int, line: int) -> int:
        """The line of the module that a cell's line is. Raises BadSource."""
        found = next((c for c in self.cells if c.number == cell), None)
        if found is None:
            raise BadSource(f"cell {cell} of the notebook is no code cell")
        if not 1 <= line <= found.text.count("\n") + 1:
            raise BadSource(f"cell {cell} of the notebook has no line {line}")
        return self.module.count("\n", 0, found.start) + line

    def place(self, line: int) -> tuple[int, int]:
        """The cell and its line that a line of the module is."""
        offset = 0
        for _ in range(line - 1):
            offset = self.module.index("\n", offset) + 1
        cell = max((c for c in self.cells if c.start <= offset), key=lambda c: c.start)
        return cell.number, cell.text.count("\n", 0, offset - cell.start) + 1

    def has_magic(self, first: int, last: int) -> bool:
        """Whether some of the module's lines stand for ones that are no Python."""
        own = self._between.join(cell.text for cell in self.cells).split("\n")
        return own[first - 1 : last] != self.module.split("\n")[first - 1 : last]

    def with_module(self, module: str) -> str:
        """The file, where text has been put into its module. Nothing may have been taken out."""
        if not self.cells:
            return self.content
        parts = module.removesuffix("\n").split(self._between)
        content = self.content
        for cell, part in reversed([*zip(self.cells, parts, strict=True)]):
            if part != _masked(cell.text):
                text = _unmasked(cell.text, part)
                content = (
                    content[: cell.begin]
                    + _written(self.content, cell, text)
                    + (content[cell.end :])
                )
        return content


def _masked(text: str) -> str:
    """Python of the same length."""
    if OTHER.match(text):
        return re.sub(r"^.", "#", text, flags=re.MULTILINE)

    pieces: list[str] = []
    end = 0
    for place in _first_lines(text):
        magic, assigned = MAGIC.match(text, place), ASSIGNED.match(text, place)
        if magic is not None:
            indent, words = magic[1], magic[2]
            masked = indent + ("0" + " " * (len(words) - 1) if indent else "#" + words[1:])
        elif assigned is not None:
            masked = assigned[1] + "0" + " " * (len(assigned[2]) - 1)
        else:
            continue
        pieces += [text[end:place], masked]
        end = place + len(masked)
    return "".join([*pieces, text[end:]])


def _first_lines(text: str) -> Iterator[int]:
    """Where lines begin that are not inside of brackets or strings: a magic is nowhere else."""
    place, depth, begins = 0, 0, True
    while place < len(text):
        if begins:
            yield place
            magic = MAGIC.match(text, place)
            if magic is not None and magic.end() > place:
                place, begins = magic.end(), False
                continue
        match = PIECE.match(text, place)
        assert match is not None
        if match.lastgroup == "other":
            depth += (match[0] in "([{") - (match[0] in ")]}")
        begins = match.lastgroup == "newline" and depth <= 0
        place = match.end()


def _unmasked(text: str, grown: str) -> str:
    """The cell's own text with what was put into its masked text."""
    masked = [*zip(_masked(text).split("\n"), text.split("\n"), strict=True)]
    hidden = iter([(mask, line) for mask, line in masked if mask != line])
    lines, wanted = grown.split("\n"), next(hidden, None)
    for number, line in enumerate(lines):
        if wanted is not None and line == wanted[0]:
            lines[number], wanted = wanted[1], next(hidden, None)
    return "\n".join(lines)


# --- JSON with places ---------------------------------------------------------------------------


def _sources(content: str) -> Iterator[tuple[str | None, int, int]]:
    """Of each cell its source, None for one that is no code, and where that is."""
    top = dict(_members(content, _skip(content, 0)))
    if "cells" not in top:
        raise ValueError("it has no cells")
    for begin in _elements(content, top["cells"]):
        members = dict(_members(content, begin))
        kind, _ = _value(content, members["cell_type"])
        source, end = _value(content, members["source"])
        text = "".join(source) if isinstance(source, list) else str(source)
        yield text if kind == "code" else None, members["source"], end


_decoder = json.JSONDecoder()


def _value(content: str, place: int) -> tuple[object, int]:
    return _decoder.raw_decode(content, place)


def _skip(content: str, place: int) -> int:
    found = SPACE.match(content, place)
    return found.end() if found else place


def _members(content: str, place: int) -> Iterator[tuple[str, int]]:
    """The keys of an object, and where their values begin."""
    if content[place : place + 1] != "{":
        raise ValueError(f"an object was expected at character {place}")
    place = _skip(content, place + 1)
    while content[place] != "}":
        key, place = _value(content, place)
        place = _skip(content, _skip(content, place) + 1)
        yield str(key), place
        _, place = _value(content, place)
        place = _skip(content, place)
        if content[place] == ",":
            place = _skip(content, place + 1)


def _elements(content: str, place: int) -> Iterator[int]:
    """Where the elements of a list begin."""
    if content[place] != "[":
        raise ValueError(f"a list was expected at character {place}")
    place = _skip(content, place + 1)
    while content[place] != "]":
        yield place
        _, place = _value(content, place)
        place = _skip(content, place)
        if content[place] == ",":
            place = _skip(content, place + 1)


def _written(content: str, cell: Cell, text: str) -> str:
    """A cell's source as JSON, in the form that the file has; lines that were there keep theirs."""
    begin, was = cell.begin, content[cell.begin : cell.end]
    if was[0] == '"':
        return _quoted(text, was)
    known: dict[str, str] = {}
    ends = [begin + 1]
    joints: list[str] = []
    for place in _elements(content, begin):
        joints.append(content[ends[-1] : place])
        value, stop = _value(content, place)
        known[str(value)] = content[place:stop]
        ends.append(stop)
    if joints:
        first, tail = joints[0], content[ends[-1] : cell.end - 1]
        joint = joints[1] if len(joints) > 1 else "," + (first or _blank(content, begin))
    else:
        first, tail = _around(content, begin)
        joint = "," + (first or _blank(content, begin))
    lines = text.splitlines(keepends=True)
    items = [known.get(line) or _quoted(line, was) for line in lines]
    return "[" + first + joint.join(items) + tail + "]"


def _blank(content: str, begin: int) -> str:
    """What is behind a comma in a line, going by what is behind the colon."""
    return " " if content[begin - 1] == " " else ""


def _around(content: str, begin: int) -> tuple[str, str]:
    """What goes before the first and behind the last element of a list that was empty."""
    line = content[content.rfind("\n", 0, begin) + 1 : begin]
    indent = line[: len(line) - len(line.lstrip())]
    if not indent or "\n" not in content[:begin]:
        return "", ""
    return f"\n{indent}{indent[: len(indent) // 3]}", f"\n{indent}"


def _quoted(text: str, like: str) -> str:
    return json.dumps(text, ensure_ascii=like.isascii())
