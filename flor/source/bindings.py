"""Whether a name has a value at a place of a module, as far as its text tells. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from flor.source.liveness import live_at_begin
from flor.source.names import BUILTINS, DYNAMIC, FUNCTIONS, SCOPED, Scope, words
from flor.source.syntax import Branch, Source, Statement

ALWAYS = BUILTINS | words(
    "__file__ __name__ __doc__ __spec__ __loader__ __package__ __builtins__ __path__ __debug__ "
    "__annotations__ __cached__ "
    "display get_ipython"  # in a notebook
)


def reads(statement: Statement) -> frozenset[str]:
    """The names that a statement takes from outside; no built-in ones."""
    module = ast.Module(body=[statement.node], type_ignores=[])
    found = (live_at_begin(module) | _deleted(statement)) - _assigned_first(statement)
    own = statement.uses
    if own.reads & DYNAMIC:  # then every name counts as read
        found = (found & own.reads) - (own.binds if statement.is_compound else frozenset())
    return found


def _assigned_first(statement: Statement) -> set[str]:
    """What a simple statement assigns with `:=` before it reads it."""
    if statement.is_compound:
        return set()
    first: dict[str, tuple[int, int]] = {}
    assigned: dict[str, tuple[int, int]] = {}
    for node in ast.walk(statement.node):
        if isinstance(node, ast.NamedExpr):
            assigned[node.target.id] = (node.end_lineno or 0, node.end_col_offset or 0)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            place = node.lineno, node.col_offset
            first[node.id] = min(place, first.get(node.id, place))
    return {name for name, end in assigned.items() if name not in first or first[name] >= end}


def bound_in(function: ast.AST) -> set[str]:
    """The names that a function binds itself: its parameters, and what its body assigns."""
    found: set[str] = set()
    if isinstance(function, (*FUNCTIONS, ast.Lambda)):
        args = function.args
        named = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
        found |= {arg.arg for arg in named if arg is not None}
    for node in getattr(function, "body", []):
        found |= _stored(node)
    return found


class Bindings:
    """What is bound in one source, and where."""

    def __init__(self, source: Source) -> None:
        self.source = source
        module = source.scopes[source.tree]
        self.module = module.binds
        self._declared = {name for s in source.scopes.values() for name in s.globals}
        self._all = any(
            isinstance(node, ast.ImportFrom) and any(a.name == "*" for a in node.names)
            for node in module.parts
        )

    def scope(self, branch: Branch) -> Scope:
        """The scope that a branch runs in."""
        owner = branch.home.owner
        return self.source.scopes[owner.node if owner is not None else self.source.tree]

    def gets(self, statement: Statement) -> frozenset[str]:
        """What a statement of this source takes from outside. Of the names that a block binds, it
        may only seem to read some before: those that have no value before it."""
        found = reads(statement)
        if not statement.is_compound:
            return found
        place = statement.branch, statement.index
        own = found & statement.uses.binds
        return found - {n for n in own if not self.is_bound(n, *place, without=statement)}

    def is_bound(
        self,
        name: str,
        branch: Branch,
        index: int,
        *,
        local: bool = False,
        without: Statement | None = None,
    ) -> bool:
        """Whether a name may have a value before statement `index` of a branch.

        `local`: it is known to be no name of the module, so that no `import *` can bind it.
        `without`: a statement that does not count.
        """
        if name in ALWAYS or name in self._declared or (self._all and not local):
            return True
        here = self.scope(branch)
        owner = here.owner(name)
        if name == "__class__":
            return any(scope.is_class for scope in here.around())
        if name not in owner.binds:
            return False
        if owner is not here:
            return True
        if any(parameter.arg == name for parameter in here.parameters):
            return True
        return self._comes_before(name, branch, index, without.node if without else None)

    def _comes_before(self, name: str, branch: Branch, index: int, skip: ast.AST | None) -> bool:
        """Whether what binds a name in this scope can have run: it comes before, or in a loop."""
        place, limit = branch, index
        while True:
            bound: bool | None = None
            for statement in place.statements[:limit]:
                if name in _deleted(statement):
                    bound = False
                elif _binds(statement, name):
                    bound = True
            if bound is not None:
                return bound
            owner = place.owner
            if owner is None or owner.is_definition:
                return False
            if _binds_in_head(owner, place, name):
                return True
            if place.kind in ("else", "finally") and owner.kind in ("Try", "For", "While"):
                others = [b for b in owner.branches if b is not place]
            elif place.kind == "except":
                others = [b for b in owner.branches if b.kind == "try"]
            else:
                others = []
            if owner.kind in ("For", "While") and place.kind == "body":
                others.append(place)
            if any(_binds(s, name, skip) for other in others for s in other.statements):
                return True
            place, limit = owner.branch, owner.index


def _binds_in_head(owner: Statement, branch: Branch, name: str) -> bool:
    """Whether the head of a block binds a name: a loop's target, `with … as`, `except … as`."""
    node = owner.node
    roots: list[ast.AST] = []
    if isinstance(node, (ast.For, ast.AsyncFor)):
        roots = [node.target, node.iter]
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        roots = list(node.items)
    elif isinstance(node, ast.While):
        roots = [node.test]
    elif isinstance(node, ast.If):
        roots = _tests(node, branch)
    elif isinstance(node, ast.Match):
        roots = [node.subject, *(case.pattern for case in node.cases if case.body is branch.nodes)]
    elif hasattr(node, "handlers"):
        handlers: list[ast.ExceptHandler] = node.handlers
        return any(h.name == name for h in handlers if h.body is branch.nodes)
    return any(name in _stored(root) for root in roots)


def _tests(node: ast.If, branch: Branch) -> list[ast.AST]:
    """The tests that were evaluated before an arm of `if … elif … else` runs."""
    found: list[ast.AST] = [node.test]
    while node.body is not branch.nodes and len(node.orelse) == 1:
        inner = node.orelse[0]
        if not isinstance(inner, ast.If):
            break
        found.append(inner.test)
        node = inner
    return found


def _binds(statement: Statement, name: str, skip: ast.AST | None = None) -> bool:
    return name in _stored(statement.node, skip)


def _deleted(statement: Statement) -> set[str]:
    """What a `del` deletes."""
    if not isinstance(statement.node, ast.Delete):
        return set()
    names = [node for node in ast.walk(statement.node) if isinstance(node, ast.Name)]
    return {node.id for node in names if isinstance(node.ctx, ast.Del)}


def _stored(root: ast.AST, skip: ast.AST | None = None) -> set[str]:
    """What a statement binds in its own scope, but for a part of it."""
    return set(_each_stored(root, skip))


def _each_stored(root: ast.AST, skip: ast.AST | None) -> Iterator[str]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node is skip:
            continue
        if isinstance(node, ast.AnnAssign) and node.value is None:
            continue  # it declares, and assigns nothing
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest
        if isinstance(node, SCOPED):
            yield node.name
            continue
        if isinstance(node, ast.Lambda):
            continue
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            waiting += [n.target for n in ast.walk(node) if isinstance(n, ast.NamedExpr)]
            continue
        waiting += ast.iter_child_nodes(node)
