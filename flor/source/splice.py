"""Puts a statement's text into another file, without changing anything else of it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flor.source.syntax import Branch, Source, Statement
from flor.source.tokens import NEWLINE, TOKEN

COMMENT = re.compile(r"[ \t\f]*(#[^\r\n]*)?\Z")
FIXED = re.compile(r"#!|[ \t\f]*#.*?coding[:=]")  # comments that mean something at the top
INDENT = re.compile(r"[ \t\f]*")


@dataclass(frozen=True)
class Insertion:
    """Text that goes in at an offset. Several at one offset go in in their order."""

    offset: int
    text: str


def insert(text: str, insertions: list[Insertion]) -> str:
    pieces: list[str] = []
    end = 0
    for item in sorted(insertions, key=lambda item: item.offset):
        pieces += [text[end : item.offset], item.text]
        end = item.offset
    return "".join([*pieces, text[end:]])


def insertion(branch: Branch, index: int, probe: Statement, text: str) -> list[Insertion]:
    """What puts the probe, whose text with all renames is `text`, before statement `index`. The
    comment that ends its line comes along where it ends a line again."""
    place = _Place(branch, index, probe)
    if place.before is not None and place.before_ends_line and not place.one_line:
        if place.after is None or place.after_begins_line:
            return place.on_lines(text + comment(probe))
    elif place.before is None and place.after is not None and place.after_begins_line:
        return place.on_lines(text + comment(probe))
    if probe.is_compound:
        return place.between_lines(text)
    return place.in_line(text)


class _Place:
    """A place between two statements of a branch, of which one may not be there."""

    def __init__(self, branch: Branch, index: int, probe: Statement) -> None:
        nodes = branch.statements
        self.branch, self.probe, self.source = branch, probe, branch.source
        self.before = nodes[index - 1] if index else None
        self.after = nodes[index] if index < len(nodes) else None
        self.text = self.source.text
        self.newline = self.source.newline

    @property
    def before_ends_line(self) -> bool:
        assert self.before is not None
        return COMMENT.match(self.text[self.before.end : self._line_end(self.before)]) is not None

    @property
    def after_begins_line(self) -> bool:
        return self.after is not None and _begins_line(self.after)

    @property
    def one_line(self) -> bool:
        """Whether the block stands behind its colon."""
        return self.branch.owner is not None and not _begins_line(self.branch.statements[0])

    def _line_end(self, statement: Statement) -> int:
        line = statement.last_line
        return self.source.starts[line - 1] + len(self.source.lines[line - 1])

    # --- on lines of its own --------------------------------------------------------------------

    def on_lines(self, text: str) -> list[Insertion]:
        text = self._indented(text, self._indent())
        if self.probe.is_definition:
            text += self.newline * self._blank_lines()
        line = self._line()
        lines = self.source.lines
        if line < len(lines) or (line == len(lines) and lines[-1]):
            return [Insertion(self._start(line), text + self.newline)]
        if lines[-1]:  # the last line has no end, and gets none
            return [Insertion(len(self.text), self.newline + text)]
        return [Insertion(len(self.text), text + self.newline)]

    def _blank_lines(self) -> int:
        """After a definition: as many as the new version has behind it."""
        lines, count = self.probe.source.lines, 0
        while self.probe.last_line + count < len(lines):
            if lines[self.probe.last_line + count].strip():
                return min(count, 2)
            count += 1
        return 0

    def _start(self, line: int) -> int:
        return self.source.starts[line - 1]

    def _line(self) -> int:
        """The line that the probe will be."""
        first = self.before.last_line + 1 if self.before is not None else None
        if self.after is None:
            assert first is not None
            return self._behind_comment(first, self._end_of_comments(first))
        stop = self.after.first_line
        if first is None:
            return self._behind_comment(self._above(stop, _begin(self.source)), stop)
        near = self._behind_comment(first, stop)
        if near != first or _follows_closely(self.probe):
            return near
        return self._above(stop, first)

    def _end_of_comments(self, first: int) -> int:
        line, lines = first, self.source.lines
        while line <= len(lines) and (lines[line - 1].lstrip()[:1] == "#"):
            line += 1
        return line

    def _behind_comment(self, first: int, stop: int) -> int:
        """Behind the comment that is right above the probe, if it is there; else `first`."""
        lines = self.probe.source.lines
        above = self.probe.first_line - 1
        comment = lines[above - 1].strip() if above else ""
        if comment[:1] == "#":
            for line in range(stop - 1, first - 1, -1):
                if self.source.lines[line - 1].strip() == comment:
                    return line + 1
        return first

    def _above(self, line: int, first: int) -> int:
        """Above the comments that belong to what is at a line."""
        lines = self.source.lines
        while line - 1 >= first and lines[line - 2].lstrip()[:1] == "#":
            line -= 1
        return line

    def _indent(self) -> str:
        for statement in (self.after, self.before, *self.branch.statements):
            if statement is not None and _begins_line(statement):
                return _indent_of(statement)
        owner = self.branch.owner
        return _indent_of(owner) + unit(self.source) if owner is not None else ""

    def _indented(self, text: str, indent: str) -> str:
        return indent + reindent(text, _indent_of(self.probe), indent, self)

    # --- in a line with others ------------------------------------------------------------------

    def in_line(self, text: str) -> list[Insertion]:
        text = NEWLINE.sub(self.newline, text)
        if self.after is not None and (self.before is None or not self.before_ends_line):
            return [Insertion(self.after.start, text + "; ")]
        assert self.before is not None
        return [Insertion(self.before.end, "; " + text)]

    def between_lines(self, text: str) -> list[Insertion]:
        """Break the line, since a block cannot stand in one with others."""
        owner = self.branch.owner
        first = self.branch.statements[0]
        indent = self._indent()
        if self.one_line and owner is not None:
            line = self.source.lines[first.first_line - 1]
            indent = (INDENT.match(line) or [""])[0] + unit(self.source)
        broken = self.newline + indent
        text = reindent(text, _indent_of(self.probe), indent, self)
        found: list[Insertion] = []
        if self.one_line:
            found.append(Insertion(first.start, broken))
        if self.before is None:
            return [*found, Insertion(first.start, text + broken)]
        if self.after is None:
            return [*found, Insertion(self.before.end, broken + text)]
        return [*found, Insertion(self.after.start, broken + text + broken)]


def _begin(source: Source) -> int:
    """The first line that may have something above it."""
    line = 1
    while line <= 2 and line < len(source.lines) and FIXED.match(source.lines[line - 1]):
        line += 1
    return line


def _begins_line(statement: Statement) -> bool:
    source = statement.source
    line_start = source.starts[statement.first_line - 1]
    return not source.text[line_start : statement.start].strip(" \t\f\ufeff")


def _follows_closely(probe: Statement) -> bool:
    """Whether nothing but comments is between the probe and the statement before it."""
    if not probe.index:
        return False
    before = probe.branch.statements[probe.index - 1]
    lines = probe.source.lines[before.last_line : probe.first_line - 1]
    return all(line.strip() for line in lines)


def _indent_of(statement: Statement) -> str:
    line = statement.source.lines[statement.first_line - 1]
    found = INDENT.match(line)
    return found[0] if found else ""


def unit(source: Source) -> str:
    """What one level of a file is indented by."""
    for statement in source.module.statements:
        for inner in statement.walk():
            owner = inner.branch.owner
            if owner is not None and inner.index == 0 and _begins_line(inner):
                deeper, outer = _indent_of(inner), _indent_of(owner)
                if deeper.startswith(outer) and deeper != outer:
                    return deeper[len(outer) :]
    return "    "


def reindent(text: str, was: str, indent: str, place: _Place) -> str:
    """The lines after the first one, moved as far as the first one was; not those of strings."""
    ours, theirs = unit(place.probe.source), unit(place.source)
    inside = _lines_in_strings(text)
    found: list[str] = []
    for number, was_line in enumerate(NEWLINE.split(text)):
        line = was_line
        if number and number not in inside and line.startswith(was):
            rest = line[len(was) :]
            if ours != theirs and set(ours) != set(theirs):
                space = (INDENT.match(rest) or [""])[0]
                levels, more = divmod(len(space), len(ours))
                rest = theirs * levels + " " * more + rest[len(space) :]
            line = indent + rest if rest.strip() else rest.strip(" \t")
        found.append(line)
    return place.newline.join(found)


def _lines_in_strings(text: str) -> set[int]:
    """The numbers of lines that begin inside of a string."""
    found: set[int] = set()
    line = 0
    for match in TOKEN.finditer(text):
        count = len(NEWLINE.findall(match[0]))
        if match.lastgroup == "string":
            found.update(range(line + 1, line + count + 1))
        line += count
    return found


def comment(probe: Statement) -> str:
    """The comment that ends the probe's line, and what is before it."""
    source = probe.source
    line = source.lines[probe.last_line - 1]
    rest = source.text[probe.end : source.starts[probe.last_line - 1] + len(line)]
    return rest.rstrip() if COMMENT.match(rest) and _begins_line(probe) else ""
