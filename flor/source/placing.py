"""Where in an older version a statement belongs. Pure.

From the module inwards, each definition and block around the statement is found in the older
version. Where a block is not there, its content may be: without the block, or in another one. In
the block that is left, each place between two statements is scored by all neighbours that both
versions have, by what the statement reads and binds, and by comments and blank lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

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
    score: float

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
    scopes: list[tuple[Statement, Statement]] = field(default_factory=list)


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
        else:
            if _enter(here, container, below) is None:
                missing = _missing_branch(below.branch)
                if _recover(here, probe):
                    return _place(here, probe) or _among_neighbours(new, old, here, missing)
                return _among_neighbours(new, old, here, missing)
    found = _place(here, probe)
    if found is not None:
        return found
    missing = f"what is next to it in {_where(here.branch)}"
    if _recover(here, probe):
        found = _place(here, probe)
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


def _enter(here: _Here, container: Statement, below: Statement) -> bool | None:
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


def _unwrapped(here: _Here, container: Statement, below: Statement) -> bool | None:
    """Where the older version has the container's content without the container."""
    at = here.items.index(container)
    inside = below.branch.statements
    items = [*here.items[:at], *inside, *here.items[at + 1 :]]
    old = here.branch.statements
    where = items.index(below)
    pairs = here.matcher.align(items, old, below, where)
    near = [i for i in (where - 1, where + 1) if at <= i < at + len(inside)]
    if below.is_compound and not below.is_definition and where in pairs:
        near.append(where)
    close = [
        i for i in near if i in pairs and here.matcher.similarity(items[i], old[pairs[i]]) >= CLOSE
    ]
    if not close:
        return None
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
        head = 0.3 * (branch.head == other.head and _top(branch) == _top(other))
        scored.append((alike + head, -number))
    scored.sort(reverse=True)
    if not scored or scored[0][0] < 0.5:
        return None
    if len(scored) > 1 and scored[0][0] - scored[1][0] < 0.05:
        return None
    return among[-scored[0][1]]


def _top(branch: Branch) -> tuple[str, ...]:
    return branch.owner.head if branch.owner is not None else ()


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
    if not _near(pairs, k):
        inner = _inside_wrapper(here, probe)
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
    scorer = _Scorer(here, probe, k, pairs, similar, moved)
    places = sorted(scorer.places(), key=lambda place: -place.score)
    found = Located(places, anchors[:6], here.matcher, here.notes, here.pairs, there, here.scopes)
    if there is None and not _is_founded(here, probe, k, pairs):
        return None
    return found


def _where(branch: Branch) -> str:
    return f"the block `{branch.title()}`" if branch.owner is not None else "the module"


def _near(pairs: Pairs, k: int) -> bool:
    return k - 1 in pairs or k + 1 in pairs


def _is_founded(here: _Here, probe: Statement, k: int, pairs: Pairs) -> bool:
    """Whether enough of what is around the probe is in the older block."""
    if any(i in pairs for i in range(k - 3, k + 4) if i != k):
        return True
    return len(here.items) == 1 or not here.branch.statements


def _inside_wrapper(here: _Here, probe: Statement) -> Branch | None:
    """The branch in a block of the older version that holds the probe's neighbours."""
    k = here.items.index(probe)
    near = [here.items[i] for i in (k - 1, k + 1) if 0 <= i < len(here.items)]
    found: list[tuple[float, int, Branch]] = []
    for wrapper in here.branch.statements:
        if not wrapper.is_compound or wrapper.is_definition:
            continue
        for inner in wrapper.walk():
            for branch in inner.branches if inner.is_compound and not inner.is_definition else ():
                score = sum(
                    max((here.matcher.similarity(s, t) for t in branch.statements), default=0.0)
                    for s in near
                )
                if score >= 0.9 * len(near):
                    found.append((score, -len(found), branch))
    return max(found)[2] if found else None


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

    def places(self) -> list[Place]:
        count = len(self.old)
        scores = [0.0] * (count + 1)
        self._add_pairs(scores)
        self._add_nearest(scores)
        self._add_rest(scores)
        self._add_layout(scores)
        self._add_uses(scores)
        first = self._first()
        return [
            Place(self.branch, index, scores[index]) for index in range(first, self._last() + 1)
        ]

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

    def _add_pairs(self, scores: list[float]) -> None:
        """Each neighbour that both have wants to be on its side, near ones most."""
        for i, j in self.pairs.items():
            if i == self.k:
                continue
            weight = self.similar[i] * 4.0 / (1 + abs(i - self.k))
            if self.uses.touches(self.items[i].uses):
                weight *= 1.5
            self._pull(scores, j, weight, after=i < self.k)
        for i, j in self.moved.items():
            self._pull(scores, j, 2.0 / (1 + abs(i - self.k)), after=i < self.k)

    def _pull(self, scores: list[float], j: int, weight: float, *, after: bool) -> None:
        """In favour of the places on one side of an old statement, and against the others."""
        for place in range(len(scores)):
            scores[place] += weight if after == (j < place) else -weight

    def _add_nearest(self, scores: list[float]) -> None:
        """Next to the nearest neighbour on either side; the block's ends are neighbours too."""
        pairs = self.pairs | self.moved
        before = max((i for i in pairs if i < self.k), default=-1)
        behind = min((i for i in pairs if i > self.k), default=len(self.items))
        place = pairs[before] + 1 if before >= 0 else self._first()
        scores[place] += 1.15 * self.similar.get(before, 1.0) / (self.k - before)
        place = pairs[behind] if behind < len(self.items) else self._last()
        scores[place] += 1.0 * self.similar.get(behind, 0.9) / (behind - self.k)

    def _add_rest(self, scores: list[float]) -> None:
        """Statements without a partner may still be alike a little."""
        taken = {*self.pairs.values(), *self.moved.values()}
        rest_old = [j for j in range(len(self.old)) if j not in taken]
        low = max((i for i in self.pairs if i < self.k), default=-1)
        high = min((i for i in self.pairs if i > self.k), default=len(self.items))
        rest_new = [i for i in range(low + 1, high) if i != self.k and i not in self.moved]
        for j in rest_old:
            for i in rest_new:
                alike = self._alike(self.items[i], self.old[j])
                if alike > 0.1:
                    weight = alike * 2.0 / (1 + abs(i - self.k))
                    self._pull(scores, j, weight, after=i < self.k)

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

    def _add_layout(self, scores: list[float]) -> None:
        """Comments that both versions have, and paragraphs."""
        source = self.probe.source
        comments, blank = _before(source, self.items, self.k)
        after, blank_after = _before(source, self.items, self.k + 1)
        theirs = self.branch.source
        for place in range(len(scores)):
            here, blank_here = _before(theirs, self.old, place)
            if comments & here:
                scores[place] += 1.5
            if after & here:
                scores[place] += 1.0
            if blank_here and place:
                scores[place] += 0.3 if blank or blank_after else -0.3
            elif blank and self.k and place:
                scores[place] -= 0.3

    def _add_uses(self, scores: list[float]) -> None:
        """After what binds what it reads, before what reads what it binds."""
        ours, partners = self.uses, {*self.pairs.values(), *self.moved.values()}
        for j, statement in enumerate(self.old):
            if j in partners:
                continue
            theirs = statement.uses
            weight = 0.0
            if ours.reads & theirs.binds - ours.binds:
                weight += 1.0
            elif ours.reads & theirs.changes - ours.binds:
                weight += 0.3
            if ours.binds & theirs.reads - theirs.binds:
                weight -= 1.0
            if ours.binds & theirs.binds - theirs.reads:
                weight += 1.0  # else it would be of no use
            if weight:
                self._pull(scores, j, weight, after=True)


def _is_fixed(statement: Statement, index: int) -> bool:
    import ast

    node = statement.node
    if isinstance(node, ast.ImportFrom):
        return node.module == "__future__"
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return (
        is_text
        and index == 0
        and isinstance(node.value.value, str)  # type: ignore[union-attr]
        and (statement.branch.owner is None or statement.branch.owner.is_definition)
    )


def _ends(statement: Statement) -> bool:
    import ast

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
