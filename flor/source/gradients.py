"""Whether gradients outlive an iteration of a loop. Pure.

Gradients that are cleared before each backward pass are nobody's state: what a checkpoint does not
hold of them is never read. The statements of the loop are followed in order, into functions of the
same file. Only what is certain to happen clears; anything that may happen computes gradients.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from flor.source.names import (
    FUNCTIONS,
    SCOPED,
    STATEMENTS,
    WITHS,
    Scope,
    blocks,
    children,
)


def gradients(scopes: Mapping[ast.AST, Scope], body: Sequence[ast.AST], scope: Scope) -> str:
    """`cleared`: before each `.backward(` of an iteration; `kept`; `unknown`: there is none."""
    found = _Gradients(scopes)
    found.run(body, scope, False)
    if not found.passes:
        return "unknown"
    return "cleared" if all(found.passes) else "kept"


class _Gradients:
    def __init__(self, scopes: Mapping[ast.AST, Scope]) -> None:
        self.scopes = scopes
        self.passes: list[bool] = []  # each backward pass: whether they were cleared before it
        self._calls: list[Scope] = []  # the functions that are being followed
        self._known: dict[tuple[Scope, bool], tuple[bool, list[bool]]] = {}
        self._methods: dict[str, list[Scope]] = {}
        for scope in scopes.values():
            if scope.is_class:
                for name, inner in scope.inner.items():
                    self._methods.setdefault(name, []).extend(inner)

    def run(self, body: Sequence[ast.AST], scope: Scope, cleared: bool) -> bool:
        """Whether they are cleared for certain after these statements."""
        for node in body:
            header = [child for child in children(node) if not isinstance(child, STATEMENTS)]
            if isinstance(node, SCOPED):
                inner = self.scopes[node]  # it may be called from here on, by whomever
                self.run(node.body, inner, cleared)
                continue
            certain = _certain(node)
            for child in (inner for part in header for inner in ast.walk(part)):
                if isinstance(child, ast.Call):
                    after = self._call(child, scope, cleared)
                    cleared = cleared or (after and child is certain)
            ends = [self.run(block, scope, cleared) for block in blocks(node)]
            if isinstance(node, (ast.If, *WITHS)):
                cleared = cleared or (bool(ends) and all(ends))
        return cleared

    def _call(self, call: ast.Call, scope: Scope, cleared: bool) -> bool:
        """Whether the call clears them."""
        name = call.func.attr if isinstance(call.func, ast.Attribute) else None
        if name == "backward":
            self.passes.append(cleared)
        if name == "zero_grad":
            return True
        functions, surely = self._functions(call.func, scope)
        ends = [self._follow(function, cleared) for function in functions]
        return surely and bool(ends) and all(ends)

    def _functions(self, func: ast.AST, scope: Scope) -> tuple[list[Scope], bool]:
        """The functions of this file that a call may mean, and whether it can be no other."""
        if isinstance(func, ast.Name):
            owner = scope.owner(func.id)
            found = owner.inner.get(func.id, [])
            surely = len(found) == 1 and func.id not in owner.stored
            return [inner for inner in found if not inner.is_class], surely
        if not isinstance(func, ast.Attribute):
            return [], False
        own = _own_class(scope, func.value)
        found = own.inner.get(func.attr, []) if own is not None else []
        candidates = found or self._methods.get(func.attr, [])
        return [inner for inner in candidates if not inner.is_class], len(found) == 1

    def _follow(self, function: Scope, cleared: bool) -> bool:
        """Whether they are cleared once the function has returned, wherever it does."""
        if function in self._calls:
            return False
        key = (function, cleared)
        if key not in self._known:
            before, self.passes = self.passes, []
            self._calls.append(function)
            node, end = function.node, False
            if isinstance(node, FUNCTIONS):
                end = self.run(node.body, function, cleared)
                end = end and (cleared or not _leaves_early(node.body))
            elif isinstance(node, ast.Lambda):
                end = self.run([ast.Expr(node.body)], function, cleared)
            self._calls.pop()
            self._known[key] = end, self.passes
            self.passes = before
        end, passes = self._known[key]
        self.passes += passes
        return end


def _certain(node: ast.AST) -> Any:
    """The call that a statement is, which happens whenever the statement does."""
    value = getattr(node, "value", None) if isinstance(node, (ast.Expr, ast.Assign)) else None
    return value.value if isinstance(value, ast.Await) else value


def _leaves_early(body: Sequence[ast.AST]) -> bool:
    """Whether a function may return before its last statement."""
    waiting = list(body[:-1]) + [inner for block in blocks(body[-1]) for inner in block]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Return):
            return True
        waiting += [inner for block in blocks(node) for inner in block]
    return False


def _own_class(scope: Scope, node: ast.AST) -> Scope | None:
    """The class whose `self` an expression is."""
    if not isinstance(node, ast.Name):
        return None
    owner = scope.owner(node.id)
    return owner.parent if owner.receiver == node.id else None
