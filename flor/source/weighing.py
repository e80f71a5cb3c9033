"""How well a statement would stand at each place between two statements of a block. Pure.

All that speaks for a place is added up: statements that both versions have, on the side where they
were; what the statement reads and binds; comments and blank lines. The weights make the sum
about the logarithm of a chance.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import NamedTuple

from flor.source.match import Matcher, Pairs
from flor.source.syntax import Branch, Source, Statement


@dataclass(frozen=True)
class Place:
    """Before statement `index` of a branch of the older version."""

    branch: Branch
    index: int
    score: float  # the higher the better
    chance: float = 1.0  # that it is this one of all places in the block

    @property
    def line(self) -> int:
        """The line of the statement that it comes before, or one more than the last one's."""
        nodes = self.branch.statements
        if self.index < len(nodes):
            return nodes[self.index].first_line
        return nodes[-1].last_line + 1


def with_chances(places: list[Place]) -> list[Place]:
    """The best one first."""
    best = max(place.score for place in places)
    total = sum(exp(place.score - best) for place in places)
    found = [replace(place, chance=exp(place.score - best) / total) for place in places]
    return sorted(found, key=lambda place: -place.score)


class Weights(NamedTuple):
    """What each piece of evidence counts for a place, against those beside it."""

    order: float  # a statement that both have is on the side where it was
    order_near: float  # the same, for the names that it has in common with the probe
    moved: float  # the same, for one that is now in another order
    source: float  # behind what gave it a value, before what takes the value away
    rest: float  # the same, for two that are only a little alike
    behind: float  # directly behind the nearest one before
    before: float  # directly before the nearest one after
    begin: float  # at the block's beginning, where the probe is
    end: float
    comment: float  # behind the comment that the probe is behind
    comment_after: float
    blank: float  # a blank line is at both places
    blank_lost: float
    blank_new: float
    binds: float  # behind what binds a name that it reads
    changes: float
    reads: float  # before what reads a name that it binds
    dead: float  # behind what overwrites a name that it binds
    number: float  # as many statements without a partner are between it and its neighbours
    kind_before: float  # the statement before is of the same kind as it was
    kind_after: float
    like: float  # beside statements that are like it


# Chosen by hand, and moved half way to what a logistic fit to histories of public packages gave,
# which was no more often right. A sum is so about the logarithm of a chance, not a measured one.
WEIGHTS = Weights(
    order=3.6, order_near=1.8, moved=1.0, source=1.5, rest=1.6, behind=1.2, before=0.95,
    begin=1.3, end=1.0,
    comment=1.8, comment_after=0.8, blank=0.6, blank_lost=-0.5, blank_new=-0.1,
    binds=1.1, changes=0.1, reads=1.0, dead=1.9, number=0.3, kind_before=0.2, kind_after=0.2,
    like=0.3,
)  # fmt: skip


class Scorer:
    """Scores each place in a branch of the older version."""

    def __init__(
        self,
        items: Sequence[Statement],
        branch: Branch,
        matcher: Matcher,
        probe: Statement,
        pairs: Pairs,
        moved: Pairs,
    ) -> None:
        self.items, self.branch, self.matcher = items, branch, matcher
        self.old, k = branch.statements, items.index(probe)
        similar = {i: matcher.similarity(items[i], self.old[j]) for i, j in pairs.items()}
        self.probe, self.k, self.pairs, self.similar = probe, k, pairs, similar
        self.moved = moved
        self.uses = probe.uses
        both = pairs | moved
        self.low = max((i for i in both if i < k), default=-1)
        self.high = min((i for i in both if i > k), default=len(self.items))
        self.both = both
        self.first, self.last = self._first(), self._last()
        self.found = [dict.fromkeys(Weights._fields, 0.0) for _ in range(len(self.old) + 1)]

    def places(self) -> list[Place]:
        self._add_pairs()
        self._add_sources()
        self._add_nearest()
        self._add_rest()
        self._add_layout()
        self._add_uses()
        self._add_kinds()
        weights = WEIGHTS._asdict()
        return [
            Place(
                self.branch,
                index,
                sum(weights[name] * value for name, value in self.found[index].items()),
            )
            for index in range(self.first, self.last + 1)
        ]

    def twins(self) -> list[int]:
        """The places that are as near to a statement equal to the nearest neighbour: which of the
        two the new version has kept cannot be known."""
        found: set[int] = set()
        for i in (self.low, self.high):
            if i not in self.both or abs(i - self.k) > 1:
                continue
            key = self.items[i].key
            for j in self._rest()[1]:
                if self.old[j].key == key:
                    found.add(j + 1 if i < self.k else j)
        return sorted(found)

    def _first(self) -> int:
        """Behind a docstring and imports from the future, whose place is fixed."""
        first = 0
        while first < len(self.old) and _is_fixed(self.old[first], first):
            first += 1
        return first

    def _last(self) -> int:
        """Before what ends the block, unless the probe came after such a thing."""
        if self.k and _ends(self.items[self.k - 1]):
            return len(self.old)
        return len(self.old) - 1 if self.old and _ends(self.old[-1]) else len(self.old)

    def _pull(self, name: str, j: int, weight: float, *, after: bool) -> None:
        """In favour of the places on one side of an old statement, and against the others."""
        for place, found in enumerate(self.found):
            found[name] += weight if after == (j < place) else -weight

    def _add_pairs(self) -> None:
        """Each neighbour that both have wants to be on its side, near ones most."""
        for i, j in self.pairs.items():
            if i == self.k:
                continue
            weight = self.similar[i] / (1 + abs(i - self.k))
            self._pull("order", j, weight, after=i < self.k)
            if self.uses.touches(self.items[i].uses):
                self._pull("order_near", j, weight, after=i < self.k)
        for i, j in self.moved.items():
            self._pull("moved", j, 1.0 / (1 + abs(i - self.k)), after=i < self.k)

    def _add_sources(self) -> None:
        """The last one before the probe that gives a name its value, and the first one after it
        that gives it another, where both versions have them."""
        for name in self.uses.reads:
            for order in (range(self.k - 1, -1, -1), range(self.k + 1, len(self.items))):
                found = next((i for i in order if _sets(self.items[i], name)), None)
                if found is not None and found in self.both:
                    self._pull("source", self.both[found], 1.0, after=found < self.k)
                    if found < self.k:
                        self._add_endings(name, found)

    def _add_endings(self, name: str, source: int) -> None:
        """What gave the name another value before its source, and now does so after it."""
        for i, j in self.both.items():
            ends = name in self.items[i].uses.binds and name not in self.items[i].uses.reads
            if i < source and ends and j > self.both[source]:
                self._pull("source", j, 2.0, after=False)

    def _add_nearest(self) -> None:
        """Next to the nearest neighbour on either side; the block's ends are neighbours too."""
        near = 1 / (self.k - self.low)
        if self.low >= 0:
            self.found[self.both[self.low] + 1]["behind"] += near
        else:
            self.found[self.first]["begin"] += near
        near = 1 / (self.high - self.k)
        if self.high in self.both:
            self.found[self.both[self.high]]["before"] += near
        else:
            self.found[self.last]["end"] += near

    def _rest(self) -> tuple[list[int], list[int]]:
        """The statements without a partner: the new ones near the probe, and the old ones."""
        taken = {*self.both.values()}
        rest_old = [j for j in range(len(self.old)) if j not in taken]
        return [i for i in range(self.low + 1, self.high) if i != self.k], rest_old

    def _add_rest(self) -> None:
        """Statements without a partner may still be alike a little, or as many."""
        rest_new, rest_old = self._rest()
        for j in rest_old:
            for i in rest_new:
                alike = self._alike(self.items[i], self.old[j])
                if alike > 0.1:
                    weight = alike / (1 + abs(i - self.k))
                    self._pull("rest", j, weight, after=i < self.k)
        before = self.k - self.low - 1
        behind = self.high - self.k - 1
        begin = self.both[self.low] + 1 if self.low in self.both else self.first
        end = self.both.get(self.high, self.last)
        for place in range(begin, end + 1):
            off = abs(place - begin - before) + abs(end - place - behind)
            self.found[place]["number"] += 1 / (1 + off)

    def _alike(self, new: Statement, old: Statement) -> float:
        alike = self.matcher.similarity(new, old)
        if self._holds(new, old) or self._holds(old, new):
            return max(alike, 0.8)
        if new.uses.binds & old.uses.binds:
            return max(alike, 0.5)
        return alike

    def _holds(self, outer: Statement, inner: Statement) -> bool:
        """Whether one statement is in the block of the other."""
        if not outer.is_compound or outer.is_definition:
            return False
        return any(s.key == inner.key for s in outer.walk() if s is not outer)

    def _add_layout(self) -> None:
        """Comments that both versions have, and paragraphs."""
        source = self.probe.source
        comments, blank = above(source, self.items, self.k)
        after, blank_after = above(source, self.items, self.k + 1)
        theirs = self.branch.source
        for place, found in enumerate(self.found):
            here, blank_here = above(theirs, self.old, place)
            found["comment"] += bool(comments & here)
            found["comment_after"] += bool(after & here)
            if place:
                was_blank = blank or blank_after
                found["blank"] += was_blank and blank_here
                found["blank_new"] += blank_here and not was_blank
                found["blank_lost"] += bool(blank and self.k) and not blank_here

    def _add_uses(self) -> None:
        """After what binds what it reads, before what reads what it binds."""
        ours = self.uses
        for j in self._rest()[1]:
            theirs = self.old[j].uses
            if ours.reads & theirs.binds - ours.binds:
                self._pull("binds", j, 1.0, after=True)
            elif ours.reads & theirs.changes - ours.binds:
                self._pull("changes", j, 1.0, after=True)
            if ours.binds & theirs.reads - theirs.binds:
                self._pull("reads", j, 1.0, after=False)
            if ours.binds & theirs.binds - theirs.reads:
                self._pull("dead", j, 1.0, after=True)

    def _add_kinds(self) -> None:
        """Between statements of the kinds that it was between, and beside those like it."""
        before = self.items[self.k - 1] if self.k else None
        after = self.items[self.k + 1] if self.k + 1 < len(self.items) else None
        for place, found in enumerate(self.found):
            above = self.old[place - 1] if place else None
            below = self.old[place] if place < len(self.old) else None
            found["kind_before"] += _same_kind(before, above)
            found["kind_after"] += _same_kind(after, below)
            for beside in (above, below):
                if beside is not None and type(beside.node) is type(self.probe.node):
                    found["like"] += self.matcher.similarity(self.probe, beside)


def _sets(statement: Statement, name: str) -> bool:
    return name in statement.uses.binds or name in statement.uses.changes


def _same_kind(new: Statement | None, old: Statement | None) -> bool:
    if new is None or old is None:
        return new is old
    return type(new.node) is type(old.node)


def _is_fixed(statement: Statement, index: int) -> bool:
    node = statement.node
    if isinstance(node, ast.ImportFrom):
        return node.module == "__future__"
    return index == 0 and statement.is_docstring


def _ends(statement: Statement) -> bool:
    return isinstance(statement.node, (ast.Return, ast.Raise, ast.Break, ast.Continue))


def above(source: Source, items: Sequence[Statement], index: int) -> tuple[set[str], bool]:
    """The comments before a statement, on lines of their own, and whether a line is blank there."""
    if index < len(items):
        end = items[index].first_line
        begin = items[index - 1].last_line + 1 if index else max(end - 5, 1)
        if index and items[index - 1].branch is not items[index].branch:
            begin = max(end - 3, 1)
        lines = source.lines[begin - 1 : end - 1]
        if not index:
            lines = _back(lines)
    else:
        begin = items[-1].last_line + 1 if items else 1
        lines = []
        for line in source.lines[begin - 1 : begin + 3]:
            if line.strip() and not line.lstrip().startswith("#"):
                break
            lines.append(line)
    words = {line.strip(" \t#") for line in lines if line.lstrip().startswith("#")}
    return words - {""}, any(not line.strip() for line in lines)


def _back(lines: list[str]) -> list[str]:
    """The blank lines and comments at the end."""
    found: list[str] = []
    for line in reversed(lines):
        if line.strip() and not line.lstrip().startswith("#"):
            break
        found.append(line)
    return found
