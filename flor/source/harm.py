"""Whether a statement would change what the code around it does. Pure.

What is asked for may assign what it likes: that is its author's wish. But a name must stay what it
is to the old code: a variable of the module or one of the function. And what only comes along must
not take a value away that the old code still reads.
"""

from __future__ import annotations

from flor.source.bindings import Bindings
from flor.source.liveness import live_at, live_at_head
from flor.source.renames import Renames
from flor.source.syntax import Branch, Statement
from flor.source.weighing import Place


def of(
    probe: Statement, place: Place, renames: Renames, bindings: Bindings, *, asked: bool
) -> str | None:
    """What would happen, in words; None if nothing would."""
    binds = {renames.of("name", name) for name in probe.uses.binds if name[0] != "."}
    if not binds:
        return None
    function = bindings.scope(place.branch)
    if function.parent is not None and not function.is_class:
        lost = binds & _declared(probe, renames) - function.globals - function.nonlocals
        if lost:
            return f"{min(lost)!r} is declared in the new version's function alone"
        for name in sorted(binds - function.binds - function.globals - function.nonlocals):
            if name in function.owner(name).binds and _is_read_before(name, place):
                return f"{name!r} is not the function's own in the older version, which reads it"
    if not asked and not probe.is_definition and probe.kind != "Import":
        taken = binds & live_behind(place.branch, place.index)
        if taken:
            return (
                f"line {probe.first_line} would come along and assign {min(taken)!r}, which the "
                "older version still reads"
            )
    return None


def live_behind(branch: Branch, index: int) -> frozenset[str]:
    """The names whose values may be read by what comes after a place."""
    while True:
        if index < len(branch.statements):
            return live_at(branch.source.tree, branch.statements[index].first_line)
        owner = branch.owner
        if owner is None or owner.is_definition:
            return frozenset()
        if owner.kind in ("For", "While") and branch.kind == "body":
            return live_at_head(branch.source.tree, owner.node.lineno)
        branch, index = owner.branch, owner.index + 1


def _declared(probe: Statement, renames: Renames) -> set[str]:
    """The names that the function around the probe declares global or nonlocal."""
    source = probe.source
    if "global " not in source.text and "nonlocal " not in source.text:
        return set()
    function = probe.branch.home.owner
    ours = source.scopes[function.node if function is not None else source.tree]
    return {renames.of("name", name) for name in ours.globals | ours.nonlocals}


def _is_read_before(name: str, place: Place) -> bool:
    branch, limit = place.branch, place.index
    while True:
        if any(name in s.uses.reads for s in branch.statements[:limit]):
            return True
        owner = branch.owner
        if owner is None or owner.is_definition:
            return False
        branch, limit = owner.branch, owner.index
