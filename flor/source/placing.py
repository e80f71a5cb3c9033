"""Where in an older version a statement belongs. Pure.

From the module inwards, each definition and block around the statement is found in the older
version. Where a block is not there, its content may be: without the block, or in another one. In
the block that is left, each place between two statements is scored by all neighbours that both
versions have, by what the statement reads and binds, and by comments and blank lines.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from math import exp
from typing import NamedTuple

from flor.source.match import Matcher, Pairs, definition, dice, elsewhere
from flor.source.syntax import Branch, Source, Statement

CLOSE = 0.75  # a neighbour that is so similar tells where a missing block's content is


@dataclass(frozen=True)
class Anchor:
    """A neighbour that both versions have; lines count from 1."""

    new_line: int
    old_line: int
    similarity: float


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


@dataclass
class Located:
    """Where the statement belongs; the best place first."""

    places: list[Place]
    anchors: list[Anchor]
    matcher: Matcher
    notes: list[str] = field(default_factory=list)
    pairs: list[tuple[Statement, Statement]] = field(default_factory=list)
    there: Statement | None = None  # the older version has it already
    twins: list[int] = field(
        default_factory=list
    )  # places beside statements equal to its neighbour
    scopes: list[tuple[Statement, Statement]] = field(default_factory=list)

    def twin_places(self) -> list[Place]:
        """Places that are as good as the best one, since what is next to them is the same."""
        best, *others = self.places
        return [p for p in others if p.index in self.twins and p.index != best.index]


class Missing(Exception):
    """The older version has no such place: `what` tells which block it lacks."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


@dataclass
class _Here:
    """How far the way inwards has come."""

    items: list[Statement]  # of the new version
    branch: Branch  # of the old one
    matcher: Matcher
    probe: Statement
    notes: list[str] = field(default_factory=list)
    pairs: list[tuple[Statement, Statement]] = field(default_factory=list)
    scopes: list[tuple[Statement, Statement]] = field(default_factory=list)


def locate(new: Source, old: Source, probe: Statement) -> Located:
    """Raises Missing."""
    if not old.module.nodes:
        raise Missing("any statement")
    way = _way(probe)
    here = _Here(new.module.statements, old.module, _matcher(new, old, way), probe)
    around = new.module
    for number, container in enumerate(way[:-1]):
        below = way[number + 1]
        if container.is_definition:
            found = definition(container, around, _scope_branch(here.branch))
            if found is None:
                found = elsewhere(container, new, old)
            if found is None:
                return _among_neighbours(new, old, here, _missing(container))
            around = below.branch
            here.scopes.append((container, found))
            here.matcher = Matcher(container.bag, found.bag)
            here.items, here.branch = below.branch.statements, found.branches[0]
        elif not _enter(here, container, below):
            return _recovered(new, old, here, _missing_branch(below.branch))
    return _place(here, probe) or _recovered(
        new, old, here, f"what is next to it in {_where(here.branch)}"
    )


def _recovered(new: Source, old: Source, here: _Here, missing: str) -> Located:
    """Where the way inwards found no place: by content. Raises Missing."""
    found = _place(here, here.probe) if _recover(here, here.probe) else None
    return found or _among_neighbours(new, old, here, missing)


def _way(probe: Statement) -> list[Statement]:
    """The statements around the probe, outer first, and the probe."""
    found = [probe]
    while (owner := found[-1].branch.owner) is not None:
        found.append(owner)
    return found[::-1]


def _matcher(new: Source, old: Source, way: list[Statement]) -> Matcher:
    if way[0].is_definition:  # nothing but its name will be looked at
        return Matcher(Counter(), Counter())
    return Matcher(new.bag, old.bag)


def _scope_branch(branch: Branch) -> Branch:
    """The body of the definition around a branch; definitions are looked for in all of it."""
    for outer in branch.around():
        if outer.owner is None or outer.owner.is_definition:
            return outer
    raise AssertionError


def _missing(container: Statement) -> str:
    kind = "class" if container.kind == "ClassDef" else "function"
    return f"the {kind} {container.name} (line {container.node.lineno})"


def _missing_branch(branch: Branch) -> str:
    return f"the block `{branch.title()}` (line {branch.line})"


# --- inwards ------------------------------------------------------------------------------------


def _enter(here: _Here, container: Statement, below: Statement) -> bool:
    """Go into the block of the older version that corresponds to a block of the new one."""
    matcher, old = here.matcher, here.branch.statements
    at = here.items.index(container)
    pairs = matcher.align(here.items, old, near=at)
    partner = old[pairs[at]] if at in pairs else _wrapped(here, container)
    if partner is not None and not partner.is_definition:
        branch = matcher.branch(below.branch, partner, here.probe)
        if branch is not None:
            _note_pairs(here, pairs, old)
            here.items, here.branch = below.branch.statements, branch
            return True
    return _unwrapped(here, container, below)


def _note_pairs(here: _Here, pairs: Pairs, old: Sequence[Statement]) -> None:
    here.pairs += [(here.items[i], old[j]) for i, j in pairs.items()]


def _wrapped(here: _Here, container: Statement) -> Statement | None:
    """The container's partner, where the older version has it inside another block."""
    found: list[tuple[float, int, Statement]] = []
    for wrapper in here.branch.statements:
        if not wrapper.is_compound or wrapper.is_definition:
            continue
        for inner in wrapper.walk():
            if inner is not wrapper and inner.is_compound and not inner.is_definition:
                alike = here.matcher.similarity(container, inner)
                if alike >= CLOSE:
                    found.append((alike, -len(found), inner))
    if not found:
        return None
    best = max(found)
    others = [score for score, *_ in found if score >= best[0]]
    return best[2] if len(others) == 1 else None


def _unwrapped(here: _Here, container: Statement, below: Statement) -> bool:
    """Where the older version has the container's content without the container."""
    at = here.items.index(container)
    inside = below.branch.statements
    items = [*here.items[:at], *inside, *here.items[at + 1 :]]
    old = here.branch.statements
    where = items.index(below)
    pairs = here.matcher.align(items, old, below, where)
    near = [i for i in range(where - 3, where + 4) if at <= i < at + len(inside) and i in pairs]
    if below.is_definition and where in near:
        near.remove(where)
    alike = {i: here.matcher.similarity(items[i], old[pairs[i]]) for i in near}
    close = [i for i in near if alike[i] >= (CLOSE if abs(i - where) <= 1 else 1.0)]
    if not close:
        return False
    here.notes.append(f"the older version has no block `{below.branch.title()}` around it")
    here.items = items
    return True


def _recover(here: _Here, probe: Statement) -> bool:
    """Go into the block with the same content, wherever in the definition it is.

    It has to be the best one for the probe's block, the probe's block the best one for it, and one
    of the probe's neighbours has to be in it.
    """
    ours = _branches_below(_scope_branch(probe.branch))
    theirs = _branches_below(_scope_branch(here.branch))
    best = _best_branch(here, probe.branch, theirs, probe)
    if best is None or _best_branch(here, best, ours, probe) is not probe.branch:
        return False
    items = probe.branch.statements
    near = [items[i] for i in (probe.index - 1, probe.index + 1) if 0 <= i < len(items)]
    if not any(here.matcher.similarity(a, b) >= CLOSE for a in near for b in best.statements):
        return False
    here.items, here.branch = items, best
    here.notes.append(f"the older version has it in the block `{best.title()}`")
    return True


def _branches_below(branch: Branch) -> list[Branch]:
    """The blocks in a definition, those of inner definitions left out."""
    found: list[Branch] = []
    waiting = [branch]
    while waiting:
        for statement in waiting.pop().statements:
            if statement.is_compound and not statement.is_definition:
                found += statement.branches
                waiting += statement.branches
    return found


def _best_branch(
    here: _Here, branch: Branch, among: Sequence[Branch], probe: Statement
) -> Branch | None:
    """The one with the same content, if it is clearly one of them."""
    bag = branch.bag - probe.bag if branch is probe.branch else branch.bag
    scored: list[tuple[float, int]] = []
    for number, other in enumerate(among):
        content = other.bag - probe.bag if other is probe.branch else other.bag
        alike = dice(bag, content)
        head = 0.3 * (bool(_top(branch)) and _top(branch) == _top(other))
        scored.append((alike + head, -number))
    scored.sort(reverse=True)
    if not scored or scored[0][0] < 0.5:
        return None
    if len(scored) > 1 and scored[0][0] - scored[1][0] < 0.05:
        return None
    return among[-scored[0][1]]


def _top(branch: Branch) -> tuple[str, ...]:
    """What leads to a block, as far as that is its own."""
    if branch.kind != "body" or branch.owner is None:
        return branch.head if branch.kind not in ("else", "try", "finally") else ()
    return branch.owner.head


def _among_neighbours(new: Source, old: Source, here: _Here, missing: str) -> Located:
    """Where two statements near the probe are in the older version, once each and together."""
    probe = here.probe
    siblings = probe.branch.statements
    near = [probe.index + n for n in (-1, 1, -2, 2) if 0 <= probe.index + n < len(siblings)]
    keys = {siblings[i].key: i for i in near if len(siblings[i].tokens) >= 4}
    ours, theirs = _with_keys(new, keys), _with_keys(old, keys)
    found = {i: theirs[i][0] for i in keys.values() if len(theirs[i]) == len(ours[i]) == 1}
    before = max((i for i in found if i < probe.index), default=None)
    after = min((i for i in found if i > probe.index), default=None)
    branches = {id(statement.branch) for statement in found.values()}
    if len(found) < 2 or len(branches) != 1:
        raise Missing(missing)
    branch = next(iter(found.values())).branch
    if before is not None and after is not None:
        index = found[after].index
        together = found[before].index + 1 == index
    elif before is not None:
        index = found[before].index + 1
        together = probe.index == len(siblings) - 1 and index == len(branch.statements)
    else:
        assert after is not None
        index = found[after].index
        together = probe.index == index == 0
    if not together or abs(probe.index - (before if before is not None else after or 0)) > 1:
        raise Missing(missing)
    here.notes.append(f"the older version lacks {missing}, but has the statements next to it")
    anchors = [Anchor(siblings[i].first_line, s.first_line, 1.0) for i, s in found.items()]
    pairs = [(siblings[i], s) for i, s in found.items()]
    place = Place(branch, index, 1.0)
    return Located([place], anchors, Matcher(new.bag, old.bag), here.notes, pairs)


def _with_keys(source: Source, keys: dict[int, int]) -> dict[int, list[Statement]]:
    found: dict[int, list[Statement]] = {number: [] for number in keys.values()}
    for outer in source.module.statements:
        for statement in outer.walk():
            if statement.key in keys:
                found[keys[statement.key]].append(statement)
    return found


# --- in the block -------------------------------------------------------------------------------


def _place(here: _Here, probe: Statement) -> Located | None:
    old = here.branch.statements
    k = here.items.index(probe)
    pairs = here.matcher.align(here.items, old, probe, k)
    if k not in pairs and k - 1 not in pairs:
        inner = _inside_wrapper(here, probe, pairs)
        if inner is not None:
            here.branch, old = inner, inner.statements
            pairs = here.matcher.align(here.items, old, probe, k)
            here.notes.append(f"the older version has it in the block `{inner.title()}`")
    _note_pairs(here, pairs, old)
    similar = {i: here.matcher.similarity(here.items[i], old[j]) for i, j in pairs.items()}
    moved = here.matcher.moved(here.items, old, probe, pairs)
    anchors = [
        Anchor(here.items[i].first_line, old[pairs[i]].first_line, round(similar[i], 3))
        for i in sorted(pairs, key=lambda i: abs(i - k))
        if i != k
    ]
    there = old[pairs[k]] if k in pairs else None
    _note_rebindings(here, probe, k, pairs.keys() | moved.keys())
    scorer = _Scorer(here, probe, k, pairs, similar, moved)
    places = _with_chances(scorer.places())
    found = Located(
        *(places, anchors[:6], here.matcher, here.notes, here.pairs),
        there=there,
        scopes=here.scopes,
    )
    found.twins = scorer.twins()
    if there is None and not _is_founded(here, probe, k, pairs):
        return None
    return found


def _note_rebindings(here: _Here, probe: Statement, k: int, known: Collection[int]) -> None:
    """Name what the new version alone does to a variable before the probe reads it."""
    told: set[str] = set()
    for i in range(k - 1, -1, -1):
        statement = here.items[i]
        names = (statement.uses.binds & probe.uses.reads) - told
        told |= names
        if names and i not in known and not statement.is_definition:
            what = ", ".join(sorted(name.lstrip(".") for name in names))
            here.notes.append(
                f"line {statement.first_line} of the new version assigns {what}; the older version "
                "has no such statement"
            )


def _with_chances(places: list[Place]) -> list[Place]:
    """The best one first."""
    best = max(place.score for place in places)
    total = sum(exp(place.score - best) for place in places)
    found = [replace(place, chance=exp(place.score - best) / total) for place in places]
    return sorted(found, key=lambda place: -place.score)


def _where(branch: Branch) -> str:
    return f"the block `{branch.title()}`" if branch.owner is not None else "the module"


def _is_founded(here: _Here, probe: Statement, k: int, pairs: Pairs) -> bool:
    """Whether enough of what is around the probe is in the older block."""
    if any(i in pairs for i in range(k - 3, k + 4) if i != k):
        return True
    first = 1 if here.items[0].is_docstring else 0
    if k in (first, len(here.items) - 1):
        return True
    comments, _ = _before(probe.source, here.items, k)
    old = here.branch.statements
    theirs = [_before(here.branch.source, old, place)[0] for place in range(len(old) + 1)]
    return any(comments & there for there in theirs)


def _inside_wrapper(here: _Here, probe: Statement, pairs: Pairs) -> Branch | None:
    """The block within the older version's one that holds what is next to the probe: both of its
    neighbours; or it is a `with`, the one before is its last, and the one after follows it."""
    k, old = here.items.index(probe), here.branch.statements
    alike = here.matcher.similarity
    before = here.items[k - 1] if k else None
    after = here.items[k + 1] if k + 1 < len(here.items) else None
    near = [s for s in (before, after) if s is not None]
    taken = set(pairs.values())
    found: list[tuple[float, int, Branch]] = []
    for j, wrapper in enumerate(old):
        if not wrapper.is_compound or wrapper.is_definition or j in taken:
            continue
        for inner in wrapper.walk():
            for branch in inner.branches if inner.is_compound and not inner.is_definition else ():
                score = sum(
                    max((alike(s, t) for t in branch.statements), default=0.0) for s in near
                )
                if k + 1 in pairs and before is not None:
                    follows = pairs[k + 1] == j + 1 and inner is wrapper and wrapper.kind == "With"
                    score = follows * len(near) * alike(before, branch.statements[-1])
                if score >= 0.9 * len(near):
                    found.append((score, -len(found), branch))
    return max(found)[2] if found else None


class Weights(NamedTuple):
    """What each piece of evidence counts for a place, against those beside it."""

    order: float  # a statement that both have is on the side where it was
    order_near: float  # the same, for the names that it has in common with the probe
    moved: float  # the same, for one that is now in another order
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


# Fitted to where statements stand in older versions of public packages, so that the exponentials of
# two places' scores are to each other as their chances; benchmarks/propagation.py tells how good.
WEIGHTS = Weights(
    order=3.6, order_near=1.8, moved=1.0, rest=1.6, behind=1.2, before=0.95, begin=1.3, end=1.0,
    comment=1.8, comment_after=0.8, blank=0.6, blank_lost=-0.5, blank_new=-0.1,
    binds=1.1, changes=0.1, reads=1.0, dead=1.9, number=0.3, kind_before=0.2, kind_after=0.2,
    like=0.3,
)  # fmt: skip


class _Scorer:
    """Scores each place in a branch of the older version."""

    def __init__(
        self,
        here: _Here,
        probe: Statement,
        k: int,
        pairs: Pairs,
        similar: dict[int, float],
        moved: Pairs,
    ) -> None:
        self.items, self.branch, self.matcher = here.items, here.branch, here.matcher
        self.old = here.branch.statements
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
        comments, blank = _before(source, self.items, self.k)
        after, blank_after = _before(source, self.items, self.k + 1)
        theirs = self.branch.source
        for place, found in enumerate(self.found):
            here, blank_here = _before(theirs, self.old, place)
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


def _before(source: Source, items: Sequence[Statement], index: int) -> tuple[set[str], bool]:
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
