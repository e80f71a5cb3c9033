"""The scopes of a module: which names each of them binds, reads, and leaves to others. Pure.

A scope is a module, a function, a lambda, a class body or a comprehension. What a statement reads
and binds is kept by *part*: a simple statement is one part, a compound statement has one for what
its header evaluates, so that control flow can be laid over them.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Loop: TypeAlias = ast.For | ast.AsyncFor | ast.While
Comprehension: TypeAlias = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
WITHS = (ast.With, ast.AsyncWith)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SCOPED = (*FUNCTIONS, ast.ClassDef)
STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)  # what blocks are made of
TRY_STAR = getattr(ast, "TryStar", ())  # Python 3.11
TYPE_ALIAS = getattr(ast, "TypeAlias", ())  # Python 3.12


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


BUILTINS = frozenset(dir(builtins))
DYNAMIC = words("eval exec globals locals vars")  # reach any variable
# They draw a generator to its end before they return, so that it reads its names at once.
CONSUMERS = words("all any dict frozenset list max min set sorted sum tuple")


@dataclass(eq=False)
class Names:
    """What one part reads, and what it has bound (or deleted) for certain when it is done."""

    reads: set[str] = field(default_factory=set)
    binds: set[str] = field(default_factory=set)


@dataclass(eq=False)
class Scope:
    """One scope, and the scopes around it."""

    node: ast.AST
    parent: Scope | None
    binds: set[str] = field(default_factory=set)  # every name that is its own
    stored: set[str] = field(default_factory=set)  # of these: not only by `def` and `class`
    globals: set[str] = field(default_factory=set)
    nonlocals: set[str] = field(default_factory=set)
    later: set[str] = field(default_factory=set)  # read by functions inside it, at any time
    parts: dict[ast.AST, Names] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)  # name → "numpy.random"
    modules: set[str] = field(default_factory=set)  # of the imports: modules for certain
    inner: dict[str, list[Scope]] = field(default_factory=dict)  # its functions and classes
    attributes: set[str] = field(default_factory=set)  # of a class: what methods set on self

    @property
    def is_class(self) -> bool:
        return isinstance(self.node, ast.ClassDef)

    @property
    def parameters(self) -> list[ast.arg]:
        """Of a function: positional ones first, as a call fills them."""
        if not isinstance(self.node, (*FUNCTIONS, ast.Lambda)):
            return []
        args = self.node.args
        rest = [arg for arg in (args.vararg, args.kwarg) if arg is not None]
        return [*args.posonlyargs, *args.args, *args.kwonlyargs, *rest]

    @property
    def receiver(self) -> str | None:
        """Of a method: what it calls `self`."""
        if self.parent is None or not self.parent.is_class or not isinstance(self.node, FUNCTIONS):
            return None
        names = [node.id for node in self.node.decorator_list if isinstance(node, ast.Name)]
        args = [*self.node.args.posonlyargs, *self.node.args.args]
        return args[0].arg if args and "staticmethod" not in names else None

    def around(self) -> Iterator[Scope]:
        """This scope and those around it, the module last."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def owner(self, name: str) -> Scope:
        """The scope whose variable a name means here; the module for one that nobody binds."""
        for scope in self.around():
            if name in scope.globals:
                break
            # What a class body binds is not seen by its methods.
            if name in scope.binds and (scope is self or not scope.is_class):
                return scope
        return [*self.around()][-1]

    def reads(self) -> set[str]:
        return set().union(*(part.reads for part in self.parts.values()))

    def is_builtin(self, name: str) -> bool:
        return name in BUILTINS and name not in self.owner(name).binds


def scopes(tree: ast.Module) -> dict[ast.AST, Scope]:
    """Every scope of a module, the module's own first, by its syntax node."""
    return _Scanner(tree).scopes


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes directly below one, in the order of its fields."""
    found: list[ast.AST] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            found.append(value)
        elif isinstance(value, list):
            found += [item for item in value if isinstance(item, ast.AST)]
    return found


def blocks(node: ast.AST) -> list[list[ast.AST]]:
    """What runs below a statement in its own scope; handlers and cases are like statements here."""
    if isinstance(node, SCOPED):
        return []
    fields = ("body", "handlers", "cases", "orelse", "finalbody")
    found = [getattr(node, name, None) for name in fields]
    return [block for block in found if isinstance(block, list)]


def first_line(node: ast.AST) -> int:
    """Of a statement, decorators included, of a handler or a case."""
    if isinstance(node, ast.match_case):
        return node.pattern.lineno
    line: int = getattr(node, "lineno", 0)
    decorators = node.decorator_list if isinstance(node, SCOPED) else []
    return min([line, *(decorator.lineno for decorator in decorators)])


def last_line(node: ast.AST) -> int:
    if isinstance(node, ast.match_case):
        return last_line(node.body[-1])
    return getattr(node, "end_lineno", None) or 0


def header_end(node: ast.AST) -> int:
    """The last line of what is evaluated before (or around) a block; of a simple statement its."""
    if isinstance(node, (ast.For, ast.AsyncFor)):
        return last_line(node.iter)
    if isinstance(node, (ast.If, ast.While)):
        return last_line(node.test)
    if isinstance(node, WITHS):
        return max(last_line(part) for item in node.items for part in children(item))
    if isinstance(node, ast.Match):
        return last_line(node.subject)
    if isinstance(node, ast.match_case):
        return last_line(node.guard or node.pattern)
    if isinstance(node, ast.ExceptHandler):
        return last_line(node.type) if node.type else node.lineno
    if isinstance(node, (ast.Try, TRY_STAR)):
        return first_line(node)
    if isinstance(node, SCOPED):
        return max(node.lineno, first_line(node.body[0]) - 1)
    return last_line(node)


def covering(tree: ast.Module, line: int) -> list[tuple[ast.AST, ast.AST]]:
    """The statements, handlers and cases around a line, outer first, with their scope's node."""
    found: list[tuple[ast.AST, ast.AST]] = []
    waiting: list[tuple[ast.AST, ast.AST]] = [(node, tree) for node in tree.body]
    while waiting:
        node, home = waiting.pop()
        if first_line(node) <= line <= last_line(node):
            found.append((node, home))
            if isinstance(node, SCOPED):
                waiting = [(inner, node) for inner in node.body]
            else:
                waiting += [(inner, home) for block in blocks(node) for inner in block]
    return found


def scope_node(tree: ast.Module, line: int) -> ast.AST:
    """The module, function or class body that runs when a line does."""
    covers = covering(tree, line)
    if not covers:
        return tree
    node, home = covers[-1]
    return node if isinstance(node, SCOPED) and line >= first_line(node.body[0]) else home


def loop_at(tree: ast.Module, line: int) -> tuple[Loop, ast.AST] | None:
    """The loop whose header a line is in, with its scope's node."""
    for node, home in reversed(covering(tree, line)):
        if isinstance(node, LOOPS) and line <= header_end(node):
            return node, home
    return None


def hands_on(tree: ast.Module, line: int) -> bool:
    """Whether the loop at a line of a generator yields what it is over: others run its body.

    So does `yield from`, which is no loop here. A body with loops of its own does the work itself,
    whatever it yields.
    """
    found = loop_at(tree, line)
    if found is None:
        return True
    loop, _ = found
    if not isinstance(loop, (ast.For, ast.AsyncFor)) or _works(tree, loop):
        return False
    items = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    yielded = [node for part in loop.body for node in ast.walk(part) if isinstance(node, ast.Yield)]
    return any(
        isinstance(node, ast.Name) and node.id in items
        for value in yielded
        for node in ast.walk(value)
    )


def _works(tree: ast.Module, loop: Loop) -> bool:
    """Whether there is a loop in the body of another, or `flor.loop` in a function it may call."""
    below = [node for part in loop.body for node in ast.walk(part)]
    names = _called(below)
    if "loop" in names or any(isinstance(node, LOOPS) for node in below):
        return True
    calls = {
        node.name: _called(ast.walk(node)) for node in ast.walk(tree) if isinstance(node, FUNCTIONS)
    }
    waiting = list(names)
    while waiting:
        new = calls.get(waiting.pop(), set()) - names
        names |= new
        waiting += new
    return "loop" in names


def _called(nodes: Iterable[ast.AST]) -> set[str]:
    """The names, and the last names, that are called."""
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    return {
        func.id if isinstance(func, ast.Name) else func.attr
        for func in calls
        if isinstance(func, (ast.Name, ast.Attribute))
    }


class _Scanner:
    """Walks a module once. Nothing recurses but scopes inside scopes."""

    def __init__(self, tree: ast.Module) -> None:
        self.scopes: dict[ast.AST, Scope] = {}
        self.read_as_global: set[str] = set()
        module = self._open(tree, None)
        self._block(module, tree.body)
        module.later |= self.read_as_global

    def _open(self, node: ast.AST, parent: Scope | None) -> Scope:
        scope = self.scopes[node] = Scope(node, parent)
        return scope

    def _close(self, scope: Scope, now: set[str]) -> None:
        """Hand what a finished scope leaves open to the one around it.

        `now` takes what its own code reads: the reads of the part that it stands in when it runs
        there, else the parent's `later`.
        """
        assert scope.parent is not None
        scope.binds -= scope.globals | scope.nonlocals
        hidden = set() if scope.is_class else scope.binds
        reads = scope.reads()
        self.read_as_global |= (reads | scope.later) & scope.globals
        now |= reads - hidden - scope.globals
        scope.parent.later |= scope.later - hidden - scope.globals

    def _block(self, scope: Scope, body: Sequence[ast.AST]) -> None:
        waiting = list(body)
        while waiting:
            node = waiting.pop()
            self._statement(scope, node)
            for block in blocks(node):
                waiting += block

    def _statement(self, scope: Scope, node: ast.AST) -> None:
        if isinstance(node, (ast.For, ast.AsyncFor)):
            self._part(scope, node.iter, node.iter)
            self._part(scope, node.target, node.target)
        elif isinstance(node, (ast.If, ast.While)):
            self._part(scope, node, node.test)
        elif isinstance(node, WITHS):
            for item in node.items:
                self._part(scope, item, *children(item))
        elif isinstance(node, (ast.Try, TRY_STAR)):
            self._part(scope, node)
        elif isinstance(node, ast.ExceptHandler):
            self._part(scope, node, *filter(None, [node.type]))
            scope.binds |= {node.name} if node.name else set()
            scope.stored |= {node.name} if node.name else set()
        elif isinstance(node, ast.Match):
            self._part(scope, node, node.subject)
        elif isinstance(node, ast.match_case):
            self._part(scope, node.pattern, node.pattern)
            if node.guard:
                self._part(scope, node.guard, node.guard)
        elif isinstance(node, SCOPED):
            self._definition(scope, node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(scope, node)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            declared = scope.globals if isinstance(node, ast.Global) else scope.nonlocals
            declared.update(node.names)
            self._part(scope, node)
        else:
            self._simple(scope, node)

    def _simple(self, scope: Scope, node: ast.AST) -> None:
        if isinstance(node, TYPE_ALIAS):
            self._part(scope, node, node.name)
            self._defer(scope, node.value)
        elif isinstance(node, ast.AnnAssign):
            names = self._part(scope, node, *filter(None, [node.target, node.value]))
            if node.value is None:
                names.binds.clear()
            self._defer(scope, node.annotation)
        else:
            names = self._part(scope, node, *children(node))
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                names.reads.add(node.target.id)
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        scope.inner.setdefault(target.id, []).append(self.scopes[node.value])

    def _definition(self, scope: Scope, node: Function | ast.ClassDef) -> None:
        inner = self._open(node, scope)
        names = self._part(scope, node, *node.decorator_list)
        if isinstance(node, ast.ClassDef):
            self._read(scope, names, [*node.bases, *node.keywords])
        else:
            self._parameters(inner, names, node.args)
            self._defer(scope, *filter(None, [node.returns]))
        names.binds.add(node.name)
        scope.binds.add(node.name)
        scope.inner.setdefault(node.name, []).append(inner)
        for parameter in getattr(node, "type_params", ()):
            inner.binds.add(parameter.name)
            self._defer(inner, *children(parameter))
        self._block(inner, node.body)
        self._close(inner, scope.later)

    def _parameters(self, inner: Scope, names: Names, args: ast.arguments) -> None:
        assert inner.parent is not None
        inner.binds |= {arg.arg for arg in inner.parameters}
        inner.stored |= inner.binds
        self._read(inner.parent, names, [*args.defaults, *filter(None, args.kw_defaults)])
        # Annotations are evaluated when they are asked for (3.14), or never.
        self._defer(inner.parent, *(arg.annotation for arg in inner.parameters if arg.annotation))

    def _import(self, scope: Scope, node: ast.Import | ast.ImportFrom) -> None:
        names = self._part(scope, node)
        for alias in node.names:
            if alias.name == "*":
                continue
            if isinstance(node, ast.Import):
                bound, full = alias.name.partition(".")[0], alias.name
                full = full if alias.asname else bound
                scope.modules.add(alias.asname or bound)
            else:
                bound = alias.name
                full = "." * node.level + f"{node.module or ''}.{alias.name}"
            names.binds.add(alias.asname or bound)
            scope.imports[alias.asname or bound] = full
        scope.binds |= names.binds

    def _part(self, scope: Scope, key: ast.AST, *roots: ast.AST) -> Names:
        names = scope.parts[key] = Names()
        self._read(scope, names, roots)
        return names

    def _defer(self, scope: Scope, *roots: ast.AST) -> None:
        names = Names()
        self._read(scope, names, roots)
        scope.later |= names.reads

    def _read(self, scope: Scope, names: Names, roots: Sequence[ast.AST]) -> None:
        """Add what expressions, targets and patterns read and bind."""
        sure = list(roots)
        perhaps: list[ast.AST] = []  # not always evaluated: binds nothing for certain
        while sure or perhaps:
            certain = bool(sure)
            waiting = sure if certain else perhaps
            node = waiting.pop()
            if isinstance(node, ast.Name):
                if isinstance(node.ctx, ast.Load):
                    names.reads.add(node.id)
                else:
                    self._bind(scope, names, node.id, certain)
            elif isinstance(node, (ast.Constant, ast.expr_context, ast.operator)):
                pass
            elif isinstance(node, ast.Attribute):
                waiting.append(node.value)
                self._attribute(scope, node)
            elif isinstance(node, ast.NamedExpr):
                waiting.append(node.value)
                self._bind(scope, names, node.target.id, certain)
            elif isinstance(node, (ast.MatchAs, ast.MatchStar, ast.MatchMapping)):
                waiting += children(node)
                name = node.rest if isinstance(node, ast.MatchMapping) else node.name
                if name:
                    self._bind(scope, names, name, certain)
            elif isinstance(node, (ast.Lambda, *COMPREHENSIONS)):
                waiting += self._expression_scope(scope, names, node)
            elif isinstance(node, ast.Call):
                waiting += self._call(scope, names, node)
            elif isinstance(node, ast.BoolOp):
                waiting.append(node.values[0])
                perhaps += node.values[1:]
            elif isinstance(node, ast.IfExp):
                waiting.append(node.test)
                perhaps += [node.body, node.orelse]
            elif isinstance(node, ast.Compare):
                waiting += [node.left, node.comparators[0]]
                perhaps += node.comparators[1:]
            else:
                waiting += children(node)

    def _expression_scope(
        self, scope: Scope, names: Names, node: ast.Lambda | Comprehension
    ) -> list[ast.AST]:
        """What of a lambda or comprehension is still to be read, around it."""
        if isinstance(node, ast.Lambda):
            inner = self._open(node, scope)
            self._parameters(inner, names, node.args)
            self._part(inner, node, node.body)
            self._close(inner, scope.later)
            return []
        later = isinstance(node, ast.GeneratorExp)
        self._comprehension(scope, node, scope.later if later else names.reads)
        return [node.generators[0].iter]

    def _bind(self, scope: Scope, names: Names, name: str, certain: bool) -> None:
        host = scope
        if isinstance(scope.node, COMPREHENSIONS) and name not in scope.binds:
            # A walrus in a comprehension binds in the function around it, if it runs at all.
            host = next(s for s in scope.around() if not isinstance(s.node, COMPREHENSIONS))
            certain = False
        host.binds.add(name)
        host.stored.add(name)
        if certain:
            names.binds.add(name)

    def _attribute(self, scope: Scope, node: ast.Attribute) -> None:
        name = node.value.id if isinstance(node.value, ast.Name) else None
        if name and name == scope.receiver and scope.parent and isinstance(node.ctx, ast.Store):
            scope.parent.attributes.add(node.attr)

    def _call(self, scope: Scope, names: Names, node: ast.Call) -> list[ast.AST]:
        """What of a call is still to be read."""
        below: list[ast.AST] = [*node.args, *node.keywords]
        if isinstance(node.func, ast.Name):
            if node.func.id == "vars" and below:
                return below  # with an argument it looks at that object only
            draws = node.func.id in CONSUMERS and len(below) == 1
            if draws and isinstance(below[0], ast.GeneratorExp):
                self._comprehension(scope, below[0], names.reads)
                below = [below[0].generators[0].iter]
        return [node.func, *below]

    def _comprehension(self, scope: Scope, node: Comprehension, now: set[str]) -> None:
        inner = self._open(node, scope)
        names = inner.parts[node] = Names()
        targets = [generator.target for generator in node.generators]
        named = [n for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
        inner.binds |= {name.id for name in named if isinstance(name.ctx, ast.Store)}
        later = [generator.iter for generator in node.generators[1:]]
        tests = [test for generator in node.generators for test in generator.ifs]
        self._read(inner, names, [*targets, *later, *tests, *values(node)])
        self._close(inner, now)


def values(node: Comprehension) -> list[ast.expr]:
    """What a comprehension collects."""
    return [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
