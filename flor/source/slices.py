"""What has to travel with a statement. Pure.

Imports, functions and classes travel wherever the older version lacks them. A statement that
assigns a variable travels if it was added together with the probe: if `base` tells so, or if
nothing but the probe and other calls that only tell something read the variable. So does a `with`
around it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from flor.source.placing import Missing, locate
from flor.source.syntax import Branch, Source, Statement

OBSERVERS = (
    *("print", "pprint", "display", "show", "plot", "log", "debug", "info", "warn", "error"),
    *("exception", "write", "report", "record", "add_scalar", "add_hist", "add_image", "add_text"),
    *("add_figure", "flush", "close"),
)
"""How the names of functions begin that only tell what they are given."""


class Slicer:
    """Finds in the new version what binds the names that a statement reads."""

    def __init__(self, new: Source, base: Source | None) -> None:
        self.new, self.base = new, base

    def added_before(self, probe: Statement) -> list[Statement]:
        """Statements that were added since `base` and give the probe its values; in order."""
        if self.base is None:
            return []
        found: list[Statement] = []
        wanted = set(probe.uses.reads)
        for statement in self._before(probe):
            gives = statement.uses.binds | statement.uses.changes
            if gives & wanted and not statement.is_definition and self._is_added(statement):
                found.append(statement)
                wanted |= statement.uses.reads
        return found[::-1]

    def binder(self, name: str, probe: Statement) -> Statement | None:
        """What is to travel so that a name has a value; None if nothing may."""
        local = [s for s in self._before(probe) if name in s.uses.binds]
        if local:
            found = local[0]
            for inner in _shallow(found):
                if _is_shared(inner, name):
                    return inner
            is_simple = isinstance(found.node, (ast.Assign, ast.AnnAssign))
            if is_simple and (self._is_added(found) if self.base else self._serves(found, probe)):
                return found
            return None
        for statement in self.new.module.statements:
            for inner in _shallow(statement):
                if _is_shared(inner, name):
                    return inner
        constants = [s for s in self.new.module.statements if name in s.uses.binds]
        if len(constants) == 1 and isinstance(constants[0].node, (ast.Assign, ast.AnnAssign)):
            found = constants[0]
            if self._is_added(found) if self.base else self._serves(found, probe):
                return found
        return None

    def why(self, name: str, probe: Statement) -> str:
        """What the new version has instead, for a message."""
        local = [s for s in self._before(probe) if name in s.uses.binds]
        if not local:
            return "" if self._is_known(name) else ", nor does the new version"
        return f" (in the new version line {local[0].first_line} does, and not for this alone)"

    def _is_known(self, name: str) -> bool:
        return any(name in scope.binds for scope in self.new.scopes.values())

    def container(self, probe: Statement) -> Statement | None:
        """The block around the probe, if that was added with it and holds nothing else."""
        owner = probe.branch.owner
        if owner is None or owner.is_definition:
            return None
        if probe.kind == "Import" or probe.is_definition:
            return owner if _provides(owner) else None
        if self.base is not None:
            return owner if self._is_added(owner) else None
        if owner.kind != "With" or not _is_call(probe):
            return None
        inside = probe.branch.statements
        alone = all(s is probe or _observes(s, probe) or self._serves(s, probe) for s in inside)
        return owner if alone else None

    def _before(self, probe: Statement) -> Iterator[Statement]:
        """The statements of its scope that come before it, the nearest first."""
        branch: Branch | None = probe.branch
        limit = probe.index
        while branch is not None:
            yield from reversed(branch.statements[:limit])
            owner = branch.owner
            if owner is None or owner.is_definition:
                return
            branch, limit = owner.branch, owner.index

    def _is_added(self, statement: Statement) -> bool:
        assert self.base is not None
        try:
            return locate(self.new, self.base, statement).there is None
        except Missing:
            return True

    def _serves(self, statement: Statement, probe: Statement) -> bool:
        """Whether nothing but the probe, and others like it, reads what a statement assigns."""
        names = statement.uses.binds
        if not names or any(name[0] == "." for name in names) or statement.uses.changes:
            return False
        top = probe.branch.home
        for outer in top.statements:
            for other in outer.walk():
                if other in (statement, probe) or _observes(other, probe):
                    continue
                if other.is_compound and not other.is_definition:
                    if names & _head_reads(other):
                        return False
                elif names & other.uses.reads and not _leads_to(other, probe):
                    return False
        return True


def _leads_to(statement: Statement, probe: Statement) -> bool:
    """Whether a simple assignment gives the probe one of its values."""
    is_assignment = isinstance(statement.node, (ast.Assign, ast.AnnAssign))
    return is_assignment and bool(statement.uses.binds & probe.uses.reads)


def _is_call(statement: Statement) -> bool:
    """A bare call."""
    return isinstance(statement.node, ast.Expr) and isinstance(
        statement.node.value, (ast.Call, ast.Await)
    )


def _observes(statement: Statement, probe: Statement) -> bool:
    """Whether a statement is a call like the probe, or one that only tells what it is given."""
    if not _is_call(statement):
        return False
    called = statement.subject
    return bool(called) and (called == probe.subject or called[-1].startswith(OBSERVERS))


def _provides(block: Statement) -> bool:
    """Whether a `try` or an `if` does nothing but import and define, or assign instead of that."""
    if block.kind not in ("Try", "If"):
        return False
    inside = [s for branch in block.branches for s in branch.statements]
    shared = [s for s in inside if s.kind == "Import" or s.is_definition]
    names = frozenset().union(*(s.uses.binds for s in shared if not s.is_compound))
    names |= {s.name for s in shared if s.name}
    return all(
        s in shared
        or isinstance(s.node, ast.Pass)
        or (isinstance(s.node, ast.Assign) and not s.uses.changes and s.uses.binds <= names)
        for s in inside
    )


def _head_reads(statement: Statement) -> set[str]:
    """The names in the head of a block."""
    words = set(statement.head)
    for branch in statement.branches:
        words |= set(branch.head)
    return words


def _shallow(statement: Statement) -> Iterator[Statement]:
    """A statement and those in its blocks, not those of functions."""
    yield statement
    if statement.is_compound and not statement.is_definition:
        for branch in statement.branches:
            for inner in branch.statements:
                yield from _shallow(inner)


def _is_shared(statement: Statement, name: str) -> bool:
    """Whether a statement imports or defines a name."""
    if statement.kind == "Import":
        return name in statement.uses.binds
    return statement.name == name
