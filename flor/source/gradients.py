"""Where the statements of a loop clear gradients, and where they may be used. Pure.

Gradients that are cleared before they are used are nobody's state: what a checkpoint does not hold
of them is never read. The statements are followed in order, into functions of the same file. Only
what is certain to happen clears; anything that may happen uses gradients. Which parameters a
receiver has, and whether it is an optimizer at all, only the running script can tell.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from flor.source.names import (
    FUNCTIONS,
    LOOPS,
    SCOPED,
    STATEMENTS,
    WITHS,
    Scope,
    blocks,
    children,
    loop_at,
    scopes,
)


class Receiver(NamedTuple):
    """What `zero_grad` or `step` is called on, as the frame that runs the loop names it."""

    path: str
    is_global: bool


class Use(NamedTuple):
    """A place where gradients may be read, or computed on top of what is there.

    `kind` is backward, step or read. `on` and `given` are the receiver and the argument of a step;
    None where they have no name. `cleared`: on these `zero_grad` was called before. It only happens
    if the objects `within` are of classes of the same file.
    """

    kind: str
    cleared: frozenset[Receiver]
    on: Receiver | None = None
    given: Receiver | None = None
    within: frozenset[Receiver] = frozenset()


_Name: TypeAlias = tuple[Scope, str]  # a path, and the scope whose variable it begins with
_Cleared: TypeAlias = frozenset[_Name]
_Arguments: TypeAlias = Mapping[str, _Name]  # what the parameters of a function are


class _Found(NamedTuple):
    kind: str
    cleared: _Cleared
    on: _Name | None = None
    given: _Name | None = None
    within: _Cleared = frozenset()


NONE: _Cleared = frozenset()


def gradients(
    known: Mapping[ast.AST, Scope], body: Sequence[ast.AST], scope: Scope
) -> tuple[Use, ...]:
    """How an iteration of a loop uses gradients, in order."""
    found = _Gradients(known, scope, None)
    found.run(body, scope, NONE, {})
    return tuple(dict.fromkeys(map(found.seen, found.uses)))


def gradients_around(tree: ast.Module, line: int, boundary: int | None) -> tuple[Use, ...]:
    """How the loop at a line uses them outside of the loop at the line `boundary`: what was cleared
    before that loop does not count after it."""
    found = loop_at(tree, line)
    inner = loop_at(tree, boundary) if boundary is not None else None
    if found is None:
        return (Use("read", frozenset()),)
    known = scopes(tree)
    scope = known[found[1]]
    walk = _Gradients(known, scope, inner[0] if inner is not None else None)
    walk.run(found[0].body, scope, NONE, {})
    return tuple(dict.fromkeys(map(walk.seen, walk.uses)))


class _Gradients:
    def __init__(
        self, known: Mapping[ast.AST, Scope], home: Scope, boundary: ast.AST | None
    ) -> None:
        self.scopes = known
        self.home = home
        self.uses: list[_Found] = []
        self._boundary = boundary
        self._crossed = 0  # how often the boundary was met
        self._calls: list[Scope] = []  # the functions that are being followed
        self._known: dict[Any, tuple[_Cleared, list[_Found], bool]] = {}
        self._methods: dict[str, list[Scope]] = {}
        for scope in known.values():
            if scope.is_class:
                for name, inner in scope.inner.items():
                    self._methods.setdefault(name, []).extend(inner)

    def seen(self, use: _Found) -> Use:
        """A use as the frame of the loop sees it; what it cannot name clears nothing."""
        cleared, within = (
            frozenset(filter(None, map(self._receiver, names)))
            for names in (use.cleared, use.within)
        )
        return Use(use.kind, cleared, self._receiver(use.on), self._receiver(use.given), within)

    def _receiver(self, name: _Name | None) -> Receiver | None:
        around = list(self.home.around())
        if name is None or name[0] not in around:
            return None
        return Receiver(name[1], name[0] is around[-1] and self.home is not around[-1])

    # --- statements -----------------------------------------------------------------------------

    def run(
        self, body: Sequence[ast.AST], scope: Scope, cleared: _Cleared, given: _Arguments
    ) -> _Cleared:
        """What is cleared for certain after these statements."""
        for node in body:
            if node is self._boundary:
                self._crossed += 1
                cleared = NONE
            elif isinstance(node, SCOPED):  # it may be called from here on, by whomever
                self.run(node.body, self.scopes[node], cleared, {})
            else:
                cleared = self._statement(node, scope, cleared, given)
        return cleared

    def _statement(
        self, node: ast.AST, scope: Scope, cleared: _Cleared, given: _Arguments
    ) -> _Cleared:
        header = [child for child in children(node) if not isinstance(child, STATEMENTS)]
        certain = _certain(node)
        parts = [inner for part in header for inner in ast.walk(part)]
        called = {part.func for part in parts if isinstance(part, ast.Call)}
        for part in parts:
            crossed = self._crossed
            if isinstance(part, ast.Call):
                after = self._call(part, scope, cleared, given)
                if crossed != self._crossed:
                    cleared = NONE
                cleared = cleared | after if part is certain else cleared
            elif _reads(part) and part not in called:
                self.uses.append(_Found("read", cleared))
        crossed = self._crossed
        ends = [self.run(block, scope, cleared, given) for block in blocks(node)]
        if crossed != self._crossed:
            if isinstance(node, LOOPS):  # around again, behind the boundary
                for block in blocks(node):
                    self.run(block, scope, NONE, given)
            return NONE
        if isinstance(node, (ast.If, *WITHS)) and ends:
            return frozenset.intersection(*ends)
        return cleared

    # --- calls ----------------------------------------------------------------------------------

    def _call(self, call: ast.Call, scope: Scope, cleared: _Cleared, given: _Arguments) -> _Cleared:
        """What the call clears, if it happens; with what was cleared before."""
        func = call.func
        name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        on = _named(func.value, scope, given) if isinstance(func, ast.Attribute) else None
        functions, surely = self._functions(func, scope)
        before = len(self.uses)
        ends = [
            self._follow(function, cleared, self._arguments(function, call, on, scope, given))
            for function in functions
        ]
        if on is not None and not surely:
            new = [use._replace(within=use.within | {on}) for use in self.uses[before:]]
            self.uses[before:] = new
        if isinstance(func, ast.Attribute) and name == "backward":
            self.uses.append(_Found("backward", cleared))
        elif isinstance(func, ast.Attribute) and name == "step":
            cleared = self._closure(call, scope, cleared)
            first = _named(call.args[0], scope, given) if call.args else None
            self.uses.append(_Found("step", cleared, on, first))
        elif name.startswith("clip_grad") or name == "unscale_":
            self.uses.append(_Found("read", cleared))
        own = frozenset({on}) if on is not None and name == "zero_grad" else NONE
        if ends and (surely or (own and len(ends) == 1)):
            return own.union(frozenset.intersection(*ends))
        return own | cleared

    def _closure(self, call: ast.Call, scope: Scope, cleared: _Cleared) -> _Cleared:
        """`step(closure)` calls that before it uses anything."""
        given = [*call.args, *(item.value for item in call.keywords if item.arg == "closure")]
        functions, surely = self._functions(given[0], scope) if given else ([], False)
        ends = [self._follow(function, cleared, {}) for function in functions]
        return ends[0] if surely and len(ends) == 1 else cleared

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

    def _arguments(
        self,
        function: Scope,
        call: ast.Call,
        on: _Name | None,
        scope: Scope,
        given: _Arguments,
    ) -> _Arguments:
        """What the parameters of a function are, as far as they are given by name."""
        names = [parameter.arg for parameter in function.parameters]
        found: dict[str, _Name | None] = {}
        if function.receiver:
            found[function.receiver], names = on, names[1:]
        if not any(isinstance(item, ast.Starred) for item in call.args):
            passed = [_named(item, scope, given) for item in call.args]
            found |= dict(zip(names, passed, strict=False))
        found |= {k.arg: _named(k.value, scope, given) for k in call.keywords if k.arg}
        return {name: item for name, item in found.items() if item is not None}

    def _follow(self, function: Scope, cleared: _Cleared, given: _Arguments) -> _Cleared:
        """What is cleared once the function has returned, wherever it does."""
        if function in self._calls:
            return cleared
        key = (function, cleared, frozenset(given.items()))
        if key not in self._known:
            before, self.uses, crossed = self.uses, [], self._crossed
            self._calls.append(function)
            node, end = function.node, cleared
            if isinstance(node, FUNCTIONS):
                end = self.run(node.body, function, cleared, given)
                end = end & cleared if _leaves_early(node.body) else end
            elif isinstance(node, ast.Lambda):
                end = self.run([ast.Expr(node.body)], function, cleared, given)
            self._calls.pop()
            self._known[key] = end, self.uses, crossed != self._crossed
            self.uses = before
        end, uses, crosses = self._known[key]
        self._crossed += crosses
        self.uses += uses
        return end


def _named(node: ast.AST, scope: Scope, given: _Arguments) -> _Name | None:
    """The variable that an expression is; a parameter stands for what it is given."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    owner, root = scope.owner(node.id), node.id
    if owner is scope and root in given:
        owner, root = given[root]
    return owner, ".".join([root, *reversed(names)])


def _reads(node: ast.AST) -> bool:
    found = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    return found and getattr(node, "attr", "") == "grad"


def _certain(node: ast.AST) -> Any:
    """The call that a statement is, which happens whenever the statement does."""
    value = getattr(node, "value", None) if isinstance(node, (ast.Expr, ast.Assign)) else None
    if isinstance(node, ast.Return):
        value = node.value
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
