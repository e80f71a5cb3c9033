"""A statement of the new version, put into an older one where it belongs. Pure.

`propagate` finds the place, gives the statement the older version's names, takes along what it
needs, and checks the result; or it says why there is no such place.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from flor.errors import BadSource, NoPlace
from flor.source.bindings import Bindings, reads
from flor.source.match import definition
from flor.source.placing import Located, Missing, Place, locate
from flor.source.renames import Renames, Votes, apply
from flor.source.splice import insert, insertion, with_comment
from flor.source.syntax import Source, Statement

FAR = 5.0  # a place with so much less is no place, even where all names have values
EQUAL = 0.25  # places whose scores differ by less are equally good


@dataclass
class Propagated:
    """The older version's text with the probe."""

    text: str
    located: Located
    places: list[Place]  # equally good ones; the first one was taken
    renames: Renames = field(default_factory=Renames)
    already: bool = False


def patched(new_source: str, old_source: str, line: int) -> str:
    """The older source with the probe. Raises NoPlace, BadSource."""
    new, old = parsed(new_source, "the new version"), parsed(old_source, "the older version")
    return propagate(new, old, line).text


def parsed(text: str, what: str) -> Source:
    """Raises BadSource."""
    try:
        return Source(text)
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else ""
        raise BadSource(f"{what} does not parse: {where}{error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise BadSource(f"{what} does not parse: {error}") from None


def propagate(new: Source, old: Source, line: int) -> Propagated:
    """Raises NoPlace."""
    probe = new.at(line)
    if probe is None:
        raise BadSource(f"line {line} of the new version holds no statement")
    try:
        located = locate(new, old, probe)
    except Missing as missing:
        raise NoPlace(f"the older version lacks {missing.what}") from None
    if located.there is not None:
        return Propagated(old.text, located, [], already=True)
    refused: NoPlace | None = None
    for place in located.places:
        if located.places[0].score - place.score > FAR:
            continue
        try:
            renames = _renames(new, old, probe, located, place)
            break
        except NoPlace as error:
            refused = refused or error
    else:
        assert refused is not None
        raise refused
    places = [p for p in located.places if abs(place.score - p.score) < EQUAL]
    text = apply(with_comment(probe), renames)
    result = insert(old.text, insertion(place.branch, place.index, probe, text))
    try:
        ast.parse(result.removeprefix("\ufeff"))
    except SyntaxError as error:
        raise NoPlace(f"with the statement the older version would not parse: {error}") from None
    return Propagated(result, located, places, renames)


def _renames(new: Source, old: Source, probe: Statement, located: Located, place: Place) -> Renames:
    bindings = Bindings(old)
    needed = reads(probe)
    unbound = [n for n in sorted(needed) if not bindings.is_bound(n, place.branch, place.index)]
    theirs = probe.uses
    matcher = located.matcher
    strange = {n for n in theirs.reads | theirs.binds if n in matcher.only_new}
    attributes = {
        node.attr for node in ast.walk(probe.node) if isinstance(node, ast.Attribute)
    } & matcher.only_new
    keywords = {
        node.arg for node in ast.walk(probe.node) if isinstance(node, ast.keyword) and node.arg
    } & matcher.only_new
    if not (unbound or strange or attributes or keywords):
        return Renames()
    votes = Votes(matcher, located.pairs)
    for scope in located.scopes:
        votes._compare(scope[0].head, scope[1].head, is_def=True)
    names: dict[str, str] = {}
    for name in sorted({*unbound, *strange}):
        was = votes.winner("name", name) or _definition_name(new, old, name)
        if was is not None and name not in names:
            if name in unbound or name in theirs.binds:
                names[name] = was
    for name in unbound:
        was = names.get(name)
        if was is None or not bindings.is_bound(was, place.branch, place.index):
            raise NoPlace(
                f"{name!r} has no value there: the older version does not bind it before line "
                f"{place.line}"
            )
    return Renames(
        names,
        {a: was for a in attributes if (was := votes.winner("attribute", a)) is not None},
        {k: was for k in keywords if (was := votes.winner("keyword", k)) is not None},
    )


def _definition_name(new: Source, old: Source, name: str) -> str | None:
    for statement in new.module.statements:
        if statement.name == name:
            found = definition(statement, new.module, old.module)
            return found.name if found is not None else None
    return None
