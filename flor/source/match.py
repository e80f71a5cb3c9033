"""Which statements of two versions are the same ones. Pure.

Branches are matched from the outside in. Within two branches, statements that occur once in each
are anchors; between anchors an order-preserving alignment adds up how alike statements are; what
then is left over may have moved. Definitions are matched by name first, loops of `flor.loop` and
records of `flor.log` by the name that they give.

A name that occurs in one version alone may be another one's new name: such names are not told
apart when statements are compared, and count for little.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import log2

from flor.source.syntax import Branch, Source, Statement
from flor.source.tokens import Tokens

ALIKE = 0.5  # statements that are at least so similar may be the same one
RENAMED = 0.6  # the same for definitions with different names
LITTLE = 12  # words; blocks with fewer can be in others by chance
CLEARLY = 0.1  # so much better than the second best
MOST_PAIRS = 40_000  # compared in one gap between anchors; beyond that only equal ones count
FOREIGN = "·"  # stands for each name that only one version has
STOP = {"if", "for", "in", "while", "with", "self", "cls"}  # words that tell nothing

Pairs = dict[int, int]


class Matcher:
    """Compares statements of two versions, inside two definitions that are the same one."""

    def __init__(self, new: Counter[str], old: Counter[str]) -> None:
        self.only_new = frozenset(_names(new) - old.keys())
        self.only_old = frozenset(_names(old) - new.keys())
        self._similar: dict[tuple[Statement, Statement], float] = {}
        self._plain: dict[Statement, Tokens] = {}
        self._bags: dict[Statement, tuple[Counter[str], int]] = {}

    def plain(self, statement: Statement, *, is_new: bool) -> Tokens:
        """Its tokens without the names that only one version has."""
        found = self._plain.get(statement)
        if found is None:
            foreign = self.only_new if is_new else self.only_old
            found = statement.tokens
            if foreign:
                found = tuple([FOREIGN if token in foreign else token for token in found])
            self._plain[statement] = found
        return found

    def key(self, statement: Statement, *, is_new: bool) -> int:
        if statement.is_definition:
            return hash((statement.kind, statement.name))
        if statement.anchor is not None:
            return hash((statement.kind, statement.anchor))
        return hash(self.plain(statement, is_new=is_new))

    def similarity(self, new: Statement, old: Statement) -> float:
        """1 for the same text, 0 for nothing in common."""
        pair = (new, old)
        found = self._similar.get(pair)
        if found is None:
            found = self._similar[pair] = self._compare(new, old)
        return found

    def _compare(self, new: Statement, old: Statement) -> float:
        if new.kind != old.kind and not (new.is_compound and old.is_compound):
            return 0.0
        if new.is_definition or old.is_definition:
            if new.kind != old.kind:
                return 0.0
            if new.name == old.name:
                return 1.0
            return 0.0
        if new.key == old.key and new.tokens == old.tokens:
            return 1.0
        if new.is_docstring and old.is_docstring:
            return 0.9
        if self.plain(new, is_new=True) == self.plain(old, is_new=False):
            shared = sum(1 for token in self._plain[new] if token != FOREIGN)
            return 0.6 + 0.38 * shared / max(len(self._plain[new]), 1)
        names = new.anchor, old.anchor
        if any(names):
            if names[0] == names[1]:
                return 0.95 if new.kind == old.kind else 0.8
            if all(names):
                return 0.0  # another record, another loop
        if not new.is_compound:
            return self._simple(new, old)
        head = _sequence(self.head(new, is_new=True), self.head(old, is_new=False))
        body = self._dice(new, old)
        if new.kind != old.kind:
            return 0.8 * body if body >= 0.7 else 0.0
        if new.kind == "Try":
            return 0.99 * body
        if head == 1 and new.kind == old.kind and _within(new, old):
            return 0.9 + 0.09 * body
        if new.kind == old.kind:
            body = max(body, 0.9 * self._overlap(new, old))
        return min(0.99, max(0.45 * head + 0.55 * body, 0.6 * (head == 1) + 0.4 * body))

    def _simple(self, new: Statement, old: Statement) -> float:
        """Assignments are first of all what they assign to, calls are what they call."""
        if new.kind == "Import":
            return self._dice(new, old, strange_counts=0.0)
        alike = 0.99 * self._dice(new, old)
        ours, theirs = new.subject, old.subject
        if not ours and not theirs:
            return alike
        if ours == theirs:
            return 0.4 + 0.6 * alike
        foreign = not (self.only_new.isdisjoint(ours) or self.only_old.isdisjoint(theirs))
        return (0.95 if foreign and len(ours) == len(theirs) else 0.7) * alike

    def head(self, statement: Statement, *, is_new: bool) -> Tokens:
        foreign = self.only_new if is_new else self.only_old
        return tuple([FOREIGN if token in foreign else token for token in statement.head])

    def _bag(self, statement: Statement, is_new: bool) -> tuple[Counter[str], int]:
        found = self._bags.get(statement)
        if found is None:
            foreign = self.only_new if is_new else self.only_old
            bag = statement.bag
            strange = sum(n for token, n in bag.items() if token in foreign)
            shared = Counter({token: n for token, n in bag.items() if token not in foreign})
            found = self._bags[statement] = shared, strange
        return found

    def _dice(self, new: Statement, old: Statement, strange_counts: float = 0.35) -> float:
        (left, strange_left), (right, strange_right) = self._bag(new, True), self._bag(old, False)
        common = 0
        for token, count in left.items():
            other = right.get(token, 0)
            common += count if count < other else other
        # Strange names may correspond to each other; that counts for less than the same name.
        strange = min(strange_left, strange_right)
        size = left.total() + right.total() + 0.7 * (strange_left + strange_right)
        return 2 * (common + strange_counts * strange) / size if size else 0.0

    def _overlap(self, new: Statement, old: Statement) -> float:
        """How much of the smaller one of two blocks is in the larger one."""
        (left, _), (right, _) = self._bag(new, True), self._bag(old, False)
        size = min(left.total(), right.total())
        if size < LITTLE:
            return 0.0
        return sum(min(n, right[token]) for token, n in left.items() if token in right) / size

    # --- two lists of statements ----------------------------------------------------------------

    def align(
        self,
        new: Sequence[Statement],
        old: Sequence[Statement],
        probe: Statement | None = None,
        near: int | None = None,
    ) -> Pairs:
        """Positions of the statements that correspond, in the same order in both. The probe only
        does to one that is equal. Where the order has changed, those next to `near` count most."""
        keys_new = [self.key(s, is_new=True) for s in new]
        keys_old = [self.key(s, is_new=False) for s in old]
        count_new, count_old = Counter(keys_new), Counter(keys_old)
        place = {key: index for index, key in enumerate(keys_old) if count_old[key] == 1}
        once = [
            (index, place[key])
            for index, key in enumerate(keys_new)
            if count_new[key] == 1 and key in place and new[index] is not probe
        ]
        anchors = _increasing(once, [self._weight(new[i], i, near) for i, _ in once])
        found: Pairs = {}
        before = (-1, -1)
        for here in [*anchors, (len(new), len(old))]:
            self._fill(new, old, (before, here), probe, found)
            if here[0] < len(new):
                found[here[0]] = here[1]
            before = here
        return found

    def _weight(self, statement: Statement, index: int, near: int | None) -> float:
        size = 1 + log2(1 + len(statement.head))
        return size if near is None else size / (1 + abs(index - near))

    def _fill(
        self,
        new: Sequence[Statement],
        old: Sequence[Statement],
        gap: tuple[tuple[int, int], tuple[int, int]],
        probe: Statement | None,
        found: Pairs,
    ) -> None:
        """Align what is between two anchors, so that similarities add up to the most."""
        (i0, j0), (i1, j1) = gap
        rows, columns = range(i0 + 1, i1), range(j0 + 1, j1)
        if not rows or not columns:
            return
        exact = len(rows) * len(columns) > MOST_PAIRS
        width = len(columns) + 1
        best = [[0.0] * width]
        for i in rows:
            above, row = best[-1], [0.0] * width
            a = new[i]
            size = 1 + 0.25 * log2(1 + len(a.head))
            for column, j in enumerate(columns, 1):
                value = above[column] if above[column] > row[column - 1] else row[column - 1]
                gain = self._gain(a, old[j], probe, exact)
                if gain and above[column - 1] + gain * size >= value:
                    value = above[column - 1] + gain * size
                row[column] = value
            best.append(row)
        i, j = len(rows), len(columns)
        while i and j:
            if best[i][j] == best[i - 1][j]:
                i -= 1
            elif best[i][j] == best[i][j - 1]:
                j -= 1
            else:
                i, j = i - 1, j - 1
                found[rows[i]] = columns[j]

    def _gain(self, a: Statement, b: Statement, probe: Statement | None, exact: bool) -> float:
        if exact or a is probe:
            logs = a is probe and (a.anchor or "").startswith("log:") and a.anchor == b.anchor
            return 1.0 if logs or (a.key == b.key and a.tokens == b.tokens) else 0.0
        alike = self.similarity(a, b)
        return alike if alike >= ALIKE else 0.0

    def moved(
        self,
        new: Sequence[Statement],
        old: Sequence[Statement],
        probe: Statement | None,
        pairs: Pairs,
    ) -> Pairs:
        """Equal statements that have no partner in order, if there is one of each."""
        taken = set(pairs.values())
        keys_old = {j: self.key(s, is_new=False) for j, s in enumerate(old) if j not in taken}
        if not keys_old:
            return {}
        keys_new = {
            i: self.key(s, is_new=True)
            for i, s in enumerate(new)
            if i not in pairs and s is not probe
        }
        counts_new, counts_old = Counter(keys_new.values()), Counter(keys_old.values())
        place = {key: j for j, key in keys_old.items() if counts_old[key] == 1}
        return {
            i: place[key] for i, key in keys_new.items() if counts_new[key] == 1 and key in place
        }

    # --- branches and definitions ---------------------------------------------------------------

    def branch(
        self, branch: Branch, old: Statement, probe: Statement | None = None
    ) -> Branch | None:
        """The one among a statement's branches that corresponds to a branch of its partner.

        All of them are matched at once, so that what is another one's is not taken. What the probe
        itself holds does not count.
        """
        owner = branch.owner
        assert owner is not None
        if owner.kind != old.kind:
            return old.branches[0] if owner.branches[0] is branch else None
        if len(owner.branches) == len(old.branches) == 1:
            return old.branches[0]
        scored = [
            (self._branch_score(ours, theirs, probe), -n, -m)
            for n, ours in enumerate(owner.branches)
            for m, theirs in enumerate(old.branches)
        ]
        taken_new: set[int] = set()
        taken_old: set[int] = set()
        for score, n, m in sorted(scored, reverse=True):
            if score < 0.3 or n in taken_new or m in taken_old:
                continue
            if owner.branches[-n] is branch:
                return old.branches[-m]
            taken_new.add(n)
            taken_old.add(m)
        return None

    def _branch_head(self, branch: Branch, is_new: bool) -> Tokens:
        foreign = self.only_new if is_new else self.only_old
        return tuple([FOREIGN if token in foreign else token for token in branch.head])

    def _branch_score(self, new: Branch, old: Branch, probe: Statement | None) -> float:
        arms = ("if", "else")
        if new.kind != old.kind and not (new.kind in arms and old.kind in arms):
            return 0.0
        bag = new.bag
        if probe is not None and any(branch is new for branch in probe.branch.around()):
            bag = bag - probe.bag
        body = dice(bag, old.bag)
        negated = _is_negated(new, old)
        if new.kind != old.kind:
            return 1.1 if negated else 0.8 * body
        if negated:
            return 0.2 * body
        if new.kind in ("body", "try", "finally"):
            return 1.0
        if new.kind == "else":
            return 0.35 + 0.6 * body
        head = _sequence(self._branch_head(new, True), self._branch_head(old, False))
        assert new.owner is not None and old.owner is not None
        first = 0.05 * (new.owner.branches[0] is new) * (old.owner.branches[0] is old)
        if head == 1:
            return 1.0 + 0.1 * body + first
        return 0.5 * head + 0.5 * body + first


def _is_negated(new: Branch, old: Branch) -> bool:
    """Whether one of two `if … else` tests the opposite of the other."""
    assert new.owner is not None and old.owner is not None
    ours, theirs = new.owner.branches, old.owner.branches
    if [b.kind for b in ours] != ["if", "else"] or [b.kind for b in theirs] != ["if", "else"]:
        return False
    return ("not", *ours[0].head) == theirs[0].head or ours[0].head == ("not", *theirs[0].head)


def definition(new: Statement, around_new: Branch, around_old: Branch) -> Statement | None:
    """The function or class in `around_old` that `new` was, by its name or by what is in it."""
    name, kind = new.name, new.kind
    theirs = [d for d in _defined(around_old) if d.kind == kind]
    ours = [d for d in _defined(around_new) if d.kind == kind]
    named = [d for d in theirs if d.name == name]
    if named:
        twins = [d for d in ours if d.name == name]
        named = [d for d in named if _accessor(d) == _accessor(new)]
        if len(named) <= 1:
            return named[0] if named else None
        return _among(new, twins, named)
    known = {d.name for d in ours}
    strangers = [d for d in theirs if d.name not in known]
    found = _alike(new, strangers, RENAMED)
    if found is None:
        return None
    old_names = {d.name for d in theirs}
    rivals = [d for d in ours if d.name not in old_names]
    return found if _alike(found, rivals, RENAMED, clearly=0.0) is new else None


def elsewhere(new: Statement, source_new: Source, source_old: Source) -> Statement | None:
    """The same for one that was in another class, or outside of one."""
    known = {_path(d) for d in source_new.definitions()}
    moved = [
        d
        for d in source_old.definitions()
        if d.name == new.name and d.kind == new.kind and _path(d) not in known
    ]
    return _alike(new, moved, ALIKE)


def _path(definition: Statement) -> tuple[str | None, ...]:
    owners = [branch.owner for branch in definition.branch.around()]
    return (definition.name, *(o.name for o in owners if o is not None and o.is_definition))


def _defined(branch: Branch) -> list[Statement]:
    """The definitions in a branch, those under its `if` and `try` included."""
    found: list[Statement] = []
    waiting = [branch]
    while waiting:
        for statement in waiting.pop().statements:
            if statement.is_definition:
                found.append(statement)
            elif statement.is_compound:
                waiting += statement.branches
    return sorted(found, key=lambda d: d.first_line)


def _among(new: Statement, twins: list[Statement], named: list[Statement]) -> Statement:
    """Several have its name: a property and its setter, one for each case of an `if`."""

    def score(number: int) -> float:
        other = named[number]
        heads = 1.0 * (_decorators(new) == _decorators(other))
        place = 0.3 * (number == twins.index(new))
        return heads + place + dice(new.bag, other.bag)

    return named[max(range(len(named)), key=score)]


def _accessor(definition: Statement) -> str:
    """`setter` or `deleter` of a property, which share its name."""
    for node in getattr(definition.node, "decorator_list", []):
        if isinstance(node, ast.Attribute) and node.attr in ("setter", "deleter"):
            return node.attr
    return ""


def _decorators(definition: Statement) -> list[str]:
    return [ast.dump(node) for node in getattr(definition.node, "decorator_list", [])]


def _alike(
    new: Statement, candidates: list[Statement], threshold: float, clearly: float = CLEARLY
) -> Statement | None:
    """The candidate with the same content, if it is clearly one of them."""
    if not candidates:
        return None
    bag = _content(new)
    scored = sorted(((dice(bag, _content(c)), n) for n, c in enumerate(candidates)), reverse=True)
    second = scored[1][0] if len(scored) > 1 else 0.0
    if scored[0][0] >= threshold and scored[0][0] - second >= clearly:
        return candidates[scored[0][1]]
    return None


def _content(definition: Statement) -> Counter[str]:
    bag = Counter(definition.bag)
    del bag["def"], bag["class"], bag["self"], bag["return"]
    return bag


def dice(left: Counter[str], right: Counter[str]) -> float:
    """How much two bags have in common: 0 to 1."""
    size = left.total() + right.total()
    if not size:
        return 1.0
    small, large = (left, right) if len(left) < len(right) else (right, left)
    return 2 * sum(min(n, large[token]) for token, n in small.items() if token in large) / size


def _within(new: Statement, old: Statement) -> bool:
    """Whether all that is in one of two blocks is in the other one."""
    ours = {s.key for s in new.walk() if s is not new}
    theirs = {s.key for s in old.walk() if s is not old}
    return ours <= theirs or theirs <= ours


def _sequence(left: Tokens, right: Tokens) -> float:
    """How alike two heads are, by their words."""
    if left == right:
        return 1.0
    ours, theirs = Counter(_words(left)), Counter(_words(right))
    shared = (ours & theirs).total()
    fewer = min(ours.total(), theirs.total())
    return max(0.98 * dice(ours, theirs), 0.7 * shared / fewer if fewer else 0.0)


def _words(head: Tokens) -> list[str]:
    return [t for t in head if (t[0].isalnum() or t[0] in '_"') and t not in STOP]


def _names(bag: Counter[str]) -> set[str]:
    """The variables, and the attributes with their dots."""
    first = {token: token[1:2] if token[0] == "." else token[0] for token in bag}
    return {token for token, letter in first.items() if letter.isalpha() or letter == "_"}


def _increasing(pairs: list[tuple[int, int]], weights: list[float]) -> list[tuple[int, int]]:
    """The heaviest part of the pairs whose second numbers increase."""
    if all(a[1] < b[1] for a, b in pairwise(pairs)):
        return pairs
    order = {j: rank for rank, j in enumerate(sorted(j for _, j in pairs), 1)}
    tree: list[tuple[float, int]] = [(0.0, -1)] * (len(pairs) + 1)  # best chain up to a rank
    back: list[int] = []
    best = (0.0, -1)
    for index, (_, j) in enumerate(pairs):
        rank = order[j] - 1
        before = (0.0, -1)
        while rank > 0:
            before = max(before, tree[rank])
            rank -= rank & -rank
        back.append(before[1])
        chain = (before[0] + weights[index], index)
        best = max(best, chain)
        rank = order[j]
        while rank < len(tree):
            tree[rank] = max(tree[rank], chain)
            rank += rank & -rank
    found: list[tuple[int, int]] = []
    index = best[1]
    while index >= 0:
        found.append(pairs[index])
        index = back[index]
    return found[::-1]
