"""Where in an older version a statement belongs. Pure.

From the module inwards, each definition and block around the statement is found in the older
version. Where a block is not there, its content may be: without the block, or in another one. In
the block that is left, each place between two statements is scored by all neighbours that both
versions have, by what the statement reads and binds, and by comments and blank lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from flor.source.match import Matcher, Pairs, definition, dice, elsewhere
from flor.source.syntax import Branch, Source, Statement
from flor.source.weighing import Place, Scorer, above, with_chances

CLOSE = 0.75  # a neighbour that is so similar tells where a missing block's content is


@dataclass(frozen=True)
class Anchor:
    """A neighbour that both versions have; lines count from 1."""

    new_line: int
    old_line: int
    similarity: float


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
            found = definition(container, around, here.branch.home)
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
        alone = len(container.branches) == len(below.branch.statements) == 1
        if (
            alone
            and matcher.similarity(container, partner) < 1
            and not _same_head(here, container, partner)
        ):
            branch = None  # nothing in it tells that it is the same block
        if branch is not None:
            _note_pairs(here, pairs, old)
            here.items, here.branch = below.branch.statements, branch
            return True
    return _unwrapped(here, container, below)


def _same_head(here: _Here, container: Statement, partner: Statement) -> bool:
    if container.anchor or partner.anchor:
        return container.anchor == partner.anchor
    return here.matcher.head(container, is_new=True) == here.matcher.head(partner, is_new=False)


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
    ours = _branches_below(probe.branch.home)
    theirs = _branches_below(here.branch.home)
    best = _best_branch(here, probe.branch, theirs, probe)
    if best is None or _best_branch(here, best, ours, probe) is not probe.branch:
        return False
    arms = ("if", "else", "body")
    if best.kind != probe.branch.kind and not (best.kind in arms and probe.branch.kind in arms):
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
    scorer = Scorer(here.items, here.branch, here.matcher, probe, pairs, moved)
    places = with_chances(scorer.places())
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


def _where(branch: Branch) -> str:
    return f"the block `{branch.title()}`" if branch.owner is not None else "the module"


def _is_founded(here: _Here, probe: Statement, k: int, pairs: Pairs) -> bool:
    """Whether enough of what is around the probe is in the older block."""
    if any(i in pairs for i in range(k - 3, k + 4) if i != k):
        return True
    first = 1 if here.items[0].is_docstring else 0
    if k in (first, len(here.items) - 1):
        return True
    comments, _ = above(probe.source, here.items, k)
    old = here.branch.statements
    theirs = [above(here.branch.source, old, place)[0] for place in range(len(old) + 1)]
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
