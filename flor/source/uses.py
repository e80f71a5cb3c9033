"""Which names a statement reads and binds, all that is in it included. Pure."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from flor.source.names import SCOPED

NAMED = (*SCOPED, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)


@dataclass(frozen=True)
class Uses:
    """Names; `self.x` counts as `.x`. What is changed is read as well."""

    reads: frozenset[str]
    binds: frozenset[str]
    changes: frozenset[str]  # `x.y = …`, `x[y] = …`, `x.y(…)` as a statement

    def touches(self, other: Uses) -> bool:
        """Whether the order of the two may matter, as far as names tell."""
        ours, theirs = self.binds | self.changes, other.binds | other.changes
        return bool(self.reads & theirs or ours & (other.reads | theirs))


def uses(root: ast.AST) -> Uses:
    reads: set[str] = set()
    binds: set[str] = set()
    changes: set[str] = set()
    for node in ast.walk(root):
        if isinstance(node, ast.Name):
            (reads if isinstance(node.ctx, ast.Load) else binds).add(node.id)
        elif isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                (reads if isinstance(node.ctx, ast.Load) else binds).add("." + node.attr)
        elif isinstance(node, ast.alias):
            binds.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, NAMED) and node.name:
            binds.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            binds.add(node.rest)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            reads.add(node.target.id)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            called = node.value.func
            changes |= {_root(called)} if isinstance(called, ast.Attribute) else set()
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            changes.add(_root(node))
    return Uses(frozenset(reads), frozenset(binds), frozenset(changes - {"", "self", "cls"}))


def _root(node: ast.expr) -> str:
    """What is changed by a change to a part of it: `x` or `.x`."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        inner = node.value
        if isinstance(inner, ast.Name) and inner.id in ("self", "cls"):
            return "." + node.attr if isinstance(node, ast.Attribute) else inner.id
        node = inner
    return node.id if isinstance(node, ast.Name) else ""
