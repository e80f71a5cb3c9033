"""A statement of the new version, put into an older one where it belongs. Pure.

The place is found, the statement gets the older version's names, what it needs and the older
version lacks comes along, and the result is checked. Or there is no such place, and the error says
why.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from flor.errors import BadSource, NoPlace
from flor.source import harm
from flor.source.placing import Anchor, Located, Missing, locate
from flor.source.renames import Renames, apply
from flor.source.slices import Slicer
from flor.source.splice import Insertion, insert, insertion
from flor.source.syntax import Source, Statement, parse
from flor.source.tokens import NEWLINE, Tokens, tokens
from flor.source.weighing import Place
from flor.source.wording import Wording

LIKELY = 0.6  # chance of a place that is taken without more ado; else a second one is told
GUESS = 0.5  # chance below which it is refused, unless it makes no difference
LEAST = 0.02  # chance of a place that is still tried if the names of better ones have no value
BOUND = (  # to a function or loop around them
    *(ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Yield, ast.YieldFrom, ast.Return),
    *(ast.Break, ast.Continue, ast.Global, ast.Nonlocal, ast.comprehension),
)
DEEP = 8  # statements that need each other


@dataclass(frozen=True)
class Placed:
    """What became of one statement. Lines count from 1."""

    new_line: int
    line: int  # in the result
    chance: float  # that this is the place
    anchors: tuple[Anchor, ...] = ()
    renames: Renames = field(default_factory=Renames)
    other_line: int | None = None  # of the older version: a place that is as good
    already: bool = False  # the older version has the statement
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Propagation:
    """The older source with the probe; what came with it is in `placed` first."""

    text: str
    placed: tuple[Placed, ...]
    probes: tuple[int, ...]  # which of them were asked for; the others came with them
    between: int = 0  # versions by way of which it was found

    @property
    def probe(self) -> Placed:
        """The last one that was asked for."""
        return self.placed[self.probes[-1]]

    @property
    def notes(self) -> list[str]:
        return [note for placed in self.placed for note in placed.notes]


def patched(new_source: str, old_source: str, line: int) -> str:
    """The older source with the statement at a line of the new one. Raises NoPlace, BadSource."""
    new = parsed(new_source, "the new version")
    return propagate(new, parsed(old_source, "the older version"), line).text


def parsed(text: str, what: str) -> Source:
    """Raises BadSource."""
    try:
        return Source(text)
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else ""
        raise BadSource(f"{what} does not parse: {where}{error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise BadSource(f"{what} does not parse: {error}") from None


def propagate(new: Source, old: Source, line: int, base: Source | None = None) -> Propagation:
    """Put the statement at a line of `new` into `old`.

    `base` is the new version as it was before the statement was added: what else was added since
    travels with it where it is needed. Without it, only what serves the statement alone does.
    Raises NoPlace, BadSource.
    """
    return propagate_all(new, old, [line], base)


def propagate_all(
    new: Source, old: Source, probes: Iterable[int | Statement], base: Source | None = None
) -> Propagation:
    """The same for several statements, or their lines, each in its own place. All, or NoPlace."""
    mover = _Mover(new, base)
    named = {_statement(new, probe) for probe in probes}
    for probe in sorted(named, key=lambda s: s.start):
        mover.on_the_way.clear()
        old = mover.move(probe, old)
        number = mover.done(probe)
        assert number is not None
        mover.probes.append(number)
    if not mover.placed:
        raise BadSource("no statement was named")
    return Propagation(old.text, tuple(mover.placed), tuple(mover.probes))


def propagate_through(
    versions: Sequence[Source], probes: Iterable[int | Statement], base: Source | None = None
) -> Propagation:
    """The same from the first version to the last, by way of those between if need be.

    What is too far apart to be recognized may be near to a version between. There the statement
    and what came with it have the names of that version, and only they are new in it.
    """
    new, *between, old = versions
    try:
        return propagate_all(new, old, probes, base)
    except NoPlace as error:
        refused = error
    if not between:
        raise refused
    found = None
    for number, version in enumerate([*between, old], 1):
        try:
            found = propagate_all(new, version, probes, base)
        except NoPlace as error:
            where = f" (by way of other versions, at step {number}: {error})"
            raise NoPlace(f"{refused}{where}") from None
        probes = [found.placed[n].line for n in found.probes]
        new, base = Source(found.text), version
    assert found is not None
    return replace(found, between=len(between))


def _statement(source: Source, probe: int | Statement) -> Statement:
    found = probe if isinstance(probe, Statement) else source.at(probe)
    if found is None:
        raise BadSource(f"line {probe} of the new version holds no statement")
    return found


@dataclass
class _Mover:
    """Moves statements and what they need; each into the text that the one before has left."""

    new: Source
    base: Source | None
    placed: list[Placed] = field(default_factory=list)
    probes: list[int] = field(default_factory=list)  # which of the placed ones were asked for
    on_the_way: list[Statement] = field(default_factory=list)
    moved: dict[Statement, int] = field(default_factory=dict)  # their numbers in `placed`

    def done(self, statement: Statement) -> int | None:
        """The number in `placed` of what has taken a statement along: it or a block around it."""
        found: Statement | None = statement
        while found is not None and found not in self.moved:
            found = found.branch.owner
        return self.moved[found] if found is not None else None

    def move(self, probe: Statement, old: Source) -> Source:
        """The older version with the probe. Raises NoPlace."""
        slicer = Slicer(self.new, self.base)
        if len(self.on_the_way) >= DEEP:
            raise NoPlace(f"line {probe.first_line} needs too much that the older version lacks")
        self.on_the_way.append(probe)
        for needed in slicer.added_before(probe):
            if needed not in self.on_the_way:
                old = self.move(needed, old)
        if self.done(probe) is not None:
            return old
        try:
            located = locate(self.new, old, probe)
        except Missing as missing:
            around = slicer.container(probe)
            if around is not None and around not in self.on_the_way:
                return self.move(around, old)
            raise NoPlace(f"the older version lacks {missing.what}") from None
        if located.there is not None:
            return self._leave(probe, located.there, old)
        return self._put(probe, old, located, slicer)

    def _put(self, probe: Statement, old: Source, located: Located, slicer: Slicer) -> Source:
        names = self._names(probe, old, located)
        places = [p for p in located.places if p is located.places[0] or p.chance >= LEAST]
        fitting = [p for p in places if not names.unbound(p)]
        if not fitting:
            return self._with_needed(probe, old, names.unbound(places[0]), places[0], slicer)
        if lost := names.lost():
            raise NoPlace(
                f"the older version sets no attribute {lost[0]!r} of self, which it reads"
            )
        place, other = fitting[0], self._other(probe, fitting, located)
        renames = names.renames
        asked = probe is self.on_the_way[0]
        if wrong := harm.of(probe, place, renames, names.bindings, asked=asked):
            raise NoPlace(wrong)
        text = apply(probe.text, renames)
        there = self._there(tokens(text), place, located)
        if there is not None:
            return self._leave(probe, there, old)
        insertions = insertion(place.branch, place.index, probe, text)
        result = insert(old.text, insertions)
        try:
            patched = _parsed(result, old, insertions, probe)
            _compile(patched, probe)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise NoPlace(
                f"with it the older version would not parse: {getattr(error, 'msg', error)}"
            ) from None
        line = _line_of(insertions, result)
        grown = len(patched.lines) - len(old.lines)
        self.placed = [
            replace(item, line=item.line + grown) if item.line >= line else item
            for item in self.placed
        ]
        self.moved[probe] = len(self.placed)
        self.placed.append(
            Placed(
                new_line=probe.first_line,
                line=line,
                chance=round(place.chance / (1 + (other in located.twin_places())), 3),
                anchors=tuple(located.anchors),
                renames=renames,
                other_line=other.line if other is not None else None,
                notes=tuple(located.notes),
            )
        )
        return patched

    def _leave(self, probe: Statement, there: Statement, old: Source) -> Source:
        """The older version as it is: it has the statement."""
        self.moved[probe] = len(self.placed)
        self.placed.append(Placed(probe.first_line, there.first_line, 1.0, already=True))
        return old

    def _there(self, words: Tokens, place: Place, located: Located) -> Statement | None:
        """The statement as it is called in the older version, if it is there without a partner."""
        taken = {old for _, old in located.pairs}
        for statement in place.branch.statements:
            if statement not in taken and statement.tokens == words:
                return statement
        return None

    def _names(self, probe: Statement, old: Source, located: Located) -> Wording:
        """What a definition needs once it is called may come later: itself, what needs it."""
        coming = {s.name for s in self.on_the_way if s.name} if probe.is_definition else set()
        return Wording(self.new, old, probe, located, coming)

    def _other(self, probe: Statement, places: Sequence[Place], located: Located) -> Place | None:
        """A place that is nearly as good as the first one. Raises NoPlace where that matters."""
        if places[0] is located.places[0] and located.twin_places():
            return located.twin_places()[0]
        first, second = places[0], places[1] if len(places) > 1 else None
        if first.chance >= LIKELY or second is None:
            return None
        begin, end = sorted((first.index, second.index))
        between = first.branch.statements[begin:end]
        same = not any(probe.uses.touches(s.uses) for s in between)
        if first.chance < GUESS and not same:
            raise NoPlace(
                f"it may belong before line {first.line} or before line {second.line} of the older "
                "version, and what is between changes what it sees"
            )
        return second

    def _with_needed(
        self, probe: Statement, old: Source, unbound: list[str], place: Place, slicer: Slicer
    ) -> Source:
        """Take along what binds the names that have no value there."""
        moved = False
        for name in unbound:
            needed = slicer.binder(name, probe)
            if needed is None or needed in self.on_the_way:
                why = slicer.why(name, probe)
                raise NoPlace(
                    f"{name!r} has no value there: the older version does not bind it before line "
                    f"{place.line}{why}"
                )
            old = self.move(needed, old)
            moved = True
        assert moved
        if self.done(probe) is not None:
            return old
        located = locate(self.new, old, probe)
        names = self._names(probe, old, located)
        if all(names.unbound(p) for p in located.places if p.chance >= LEAST):
            raise NoPlace(f"{names.unbound(located.places[0])[0]!r} has no value there")
        return self._put(probe, old, located, slicer)


def _compile(patched: Source, probe: Statement) -> None:
    """`await`, `return`, `break` … parse everywhere. Raises SyntaxError."""
    if any(isinstance(node, BOUND) for node in ast.walk(probe.node)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # as in a notebook
            compile(patched.tree, "<flor>", "exec", flags=flags, dont_inherit=True)


def _parsed(result: str, old: Source, insertions: Sequence[Insertion], probe: Statement) -> Source:
    """The result, of which the statement of the module that has changed is parsed at once. Raises
    SyntaxError."""
    begin, end = insertions[0].offset, insertions[-1].offset
    for statement in old.module.statements:
        if statement.start < begin and end <= statement.end:
            stop = statement.end + len(result) - len(old.text)
            if (
                _count(parse(result[statement.start : stop]))
                == _count(statement.node) + _count(probe.node) + 2
            ):
                return Source(result, known=True)
            break
    else:
        found = Source(result)
        if _count(found.tree) == _count(old.tree) + _count(probe.node) + 1:
            return found
    raise SyntaxError("other statements would not be what they are")


def _count(node: ast.AST) -> int:
    """How many statements are in one, itself left out."""
    return sum(isinstance(inner, ast.stmt) for inner in ast.walk(node) if inner is not node)


def _line_of(insertions: Sequence[Insertion], result: str) -> int:
    """Of the first character that was put in, past white space."""
    place = insertions[0].offset
    while place < len(result) and result[place].isspace():
        place += 1
    return len(NEWLINE.findall(result, 0, place)) + 1


def logging(source: Source, name: str) -> list[Statement]:
    """The statements that log a name: flor.log("loss", …), also inside of an assignment."""
    return [
        statement
        for outer in source.module.statements
        for statement in outer.walk()
        if not statement.is_compound and _logs(statement, name)
    ]


def _logs(statement: Statement, name: str) -> bool:
    for node in ast.walk(statement.node):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        func, first = node.func, node.args[0]
        called = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        is_name = isinstance(first, ast.Constant) and first.value == name
        if called in ("log", "log_metric", "add_scalar") and is_name:
            return True
    return False
