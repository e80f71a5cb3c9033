"""What a loop changes, by the rules of Table 2 of the Flor paper, extended. Pure.

A change is a path: a variable and attributes of it, `best`, `self.best`. The paper's rules find
assigned names and the receivers of method calls. Beyond them, functions of the same file are
looked into, a change through one name (`a = b`) reaches the other, and stores into containers
count. Where the paper gives up (rules 0 and 5) a guess is made, and the statement is listed.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from flor.source.effects import (
    MUTATORS,
    Call,
    Change,
    Effect,
    How,
    Links,
    Source,
    at_call,
    merged,
    through_links,
)
from flor.source.gradients import Use, gradients
from flor.source.names import (
    COMPREHENSIONS,
    DYNAMIC,
    FUNCTIONS,
    SCOPED,
    STATEMENTS,
    Comprehension,
    Scope,
    blocks,
    children,
    first_line,
    loop_at,
    scopes,
    values,
    words,
)

DEPTH = 4  # calls that are followed, one inside the other

READERS = words("items keys values")  # methods without arguments that change nothing
# Iterating over these gives the elements of their arguments.
VIEWS = words("enumerate filter iter list loop reversed sorted tqdm tuple zip")
CHANGING_BUILTINS = words("anext delattr next setattr")
# Functions (or their beginnings) that change their first argument; besides `…_` again.
IN_PLACE = words(
    """bisect.insort heapq.heap random.shuffle numpy.random.shuffle numpy.copyto
    numpy.fill_diagonal numpy.place numpy.put operator.delitem operator.setitem
    torch.autograd.backward torch.distributed."""
)
# Libraries whose other functions change no argument.
PURE_LIBRARIES = words(
    """PIL argparse base64 bisect cmath collections contextlib copy csv dataclasses datetime
    decimal einops enum flor fractions functools gc glob hashlib heapq itertools jax json logging
    math matplotlib mlflow numpy operator os pandas pathlib pickle platform pprint random re scipy
    seaborn shutil sklearn statistics string struct subprocess sys tempfile tensorflow textwrap
    time torch torchaudio torchmetrics torchvision tqdm traceback typing uuid wandb warnings"""
)
CONSTRUCTORS = ("__new__", "__init__", "__post_init__")
IMPORTS = (ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class LoopChanges:
    """The changeset of one loop. What is `uncertain` was not understood: line and statement."""

    line: int
    end_line: int
    changes: tuple[Change, ...]
    uncertain: tuple[tuple[int, str], ...]
    gradients: tuple[Use, ...]  # how an iteration uses them


def loop_changes(tree: ast.Module, line: int) -> LoopChanges | None:
    """What the loop whose header is at `line` changes; None if there is no loop."""
    found = loop_at(tree, line)
    if found is None:
        return None
    loop, home = found
    program = _Program(tree)
    scope = program.scopes[home]
    walk = _Walk(program)
    walk.run([loop], scope)
    for around in scope.around():
        walk.link(around)
    changes = merged(program.complete(walk, DEPTH), scope)
    end = loop.end_lineno or loop.lineno
    uses = gradients(program.scopes, loop.body, scope)
    return LoopChanges(loop.lineno, end, changes, tuple(walk.uncertain), uses)


def function_changes(tree: ast.Module, line: int, name: str) -> tuple[Change, ...]:
    """What calls of the function that begins at `line` change: its parameters, which are local to
    it, and names outside."""
    program = _Program(tree)
    found: dict[Change, None] = {}
    for scope in program.scopes.values():
        node = scope.node
        if not isinstance(node, (*FUNCTIONS, ast.Lambda)) or first_line(node) != line:
            continue
        if getattr(node, "name", "<lambda>") == name:
            found |= dict.fromkeys(merged(program.effects(scope, DEPTH), scope))
    return tuple(found)


class _Program:
    """A module's scopes, and what its functions do."""

    def __init__(self, tree: ast.Module) -> None:
        self.scopes = scopes(tree)
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        self.has_stars = any(alias.name == "*" for node in imports for alias in node.names)
        self.methods: defaultdict[str, list[Scope]] = defaultdict(list)
        for scope in self.scopes.values():
            if scope.is_class:
                for name, found in scope.inner.items():
                    self.methods[name] += found
        self.walks: dict[Scope, _Walk] = {}
        self.known: dict[tuple[Scope, int], list[Effect]] = {}

    def effects(self, function: Scope, depth: int) -> list[Effect]:
        """What a call does to the function's parameters and to names outside it."""
        if (function, depth) not in self.known:
            if depth == 0:
                names = [parameter.arg for parameter in function.parameters]
                found = [Effect(function, name, How.PASSED, 5, 0, False) for name in names]
            else:
                outer = list(function.around())
                effects = self.complete(self._walk(function), depth)
                seen = {(e.owner, e.path, e.how, e.sure): e for e in effects if e.owner in outer}
                found = list(seen.values())
            self.known[function, depth] = found
        return self.known[function, depth]

    def _walk(self, function: Scope) -> _Walk:
        if function not in self.walks:
            walk = self.walks[function] = _Walk(self, called=True)
            node = function.node
            if isinstance(node, ast.Lambda):
                walk.run([ast.Return(node.body, lineno=node.lineno)], function)
            elif isinstance(node, SCOPED):
                walk.run(node.body, function)
                walk.link(function)
        return self.walks[function]

    def complete(self, walk: _Walk, depth: int) -> list[Effect]:
        """The effects of a walk with those of the functions that it met, through all names."""
        found = list(walk.effects)
        for call in walk.calls:
            for effect in self.effects(call.function, depth - 1):
                found += at_call(effect, call)
        return through_links(found, walk.links)

    def imported(self, scope: Scope, path: str) -> str | None:
        """What a path is called by the library that it comes from, "numpy.random.shuffle"."""
        root, dot, rest = path.partition(".")
        owner = scope.owner(root)
        if root == "flor" and root not in owner.binds:
            return path
        return owner.imports[root] + dot + rest if root in owner.imports else None

    def is_module(self, scope: Scope, path: str) -> bool:
        """Whether a path is no variable, but a library's module or something inside one."""
        full = self.imported(scope, path)
        root = path.partition(".")[0]
        bound = root in scope.owner(root).modules and "." not in path
        return full is not None and (bound or full.partition(".")[0] in PURE_LIBRARIES)

    def sources(self, scope: Scope, node: ast.AST, iterated: bool = False) -> list[Source]:
        """The variables that a value may be; with `iterated`, that its elements may be."""
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            path, inside = _held(node)
            root = path.partition(".")[0] if path else ""
            owner = scope.owner(root)
            defined = root in owner.inner and root not in owner.stored
            if not path or defined or scope.is_builtin(root) or self.is_module(scope, path):
                return []
            return [Source(owner, path, inside or iterated)]
        below: list[ast.AST] = []
        if isinstance(node, ast.Starred):
            below, iterated = [node.value], True
        elif isinstance(node, ast.keyword):
            below = [node.value]
        elif isinstance(node, ast.IfExp):
            below = [node.body, node.orelse]
        elif isinstance(node, ast.BoolOp):
            below = list(node.values)
        elif isinstance(node, ast.NamedExpr):
            below = [node.target, node.value]
        elif isinstance(node, (ast.Tuple, ast.List, ast.Set)) and iterated:
            below, iterated = list(node.elts), False
        elif isinstance(node, ast.Call) and iterated:
            name = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
            if name in VIEWS:
                below = list(node.args)
            elif name in ("items", "values") and isinstance(node.func, ast.Attribute):
                below = [node.func.value]
        return [source for item in below for source in self.sources(scope, item, iterated)]

    def given(self, scope: Scope, node: ast.AST) -> list[Source]:
        """What a call can reach through an argument."""
        display = isinstance(node, (ast.Tuple, ast.List, ast.Set))
        return self.sources(scope, node, iterated=display)


def _held(node: ast.AST) -> tuple[str | None, bool]:
    """The path of what a target or a receiver is, or (then True) of the container it is in."""
    names: list[str] = []
    inside = False
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            names.append(node.attr)
        elif (of := _type_of(node)) is not None:
            names.append("__class__")
            node = of
            continue
        elif isinstance(node, ast.Subscript):
            names, inside = [], True
        else:
            return None, inside
        node = node.value
    return ".".join([node.id, *reversed(names)]), inside


def _type_of(node: ast.AST) -> ast.AST | None:
    """What `type` is asked for."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return None
    return node.args[0] if node.func.id == "type" and len(node.args) == 1 else None


def _taking(function: Scope, call: ast.Call) -> Iterator[Sequence[str]]:
    """The parameters that each argument of a call may be for, keywords last."""
    assert isinstance(function.node, (*FUNCTIONS, ast.Lambda))
    args = function.node.args
    names = [arg.arg for arg in [*args.posonlyargs, *args.args]][bool(function.receiver) :]
    every = [arg.arg for arg in function.parameters]
    more = [args.vararg.arg] if args.vararg else []
    starred = False
    for index, argument in enumerate(call.args):
        starred = starred or isinstance(argument, ast.Starred)
        yield every if starred else names[index : index + 1] or more
    for keyword in call.keywords:
        more = [args.kwarg.arg] if args.kwarg else []
        yield every if keyword.arg is None else [keyword.arg] if keyword.arg in every else more


def _of_class(scope: Scope, rest: str = "") -> Source:
    """A class, or an attribute of it."""
    assert isinstance(scope.node, ast.ClassDef)
    assert scope.parent is not None
    name = scope.node.name
    return Source(scope.parent.owner(name), f"{name}.{rest}" if rest else name)


class _Walk:
    """Collects what statements do, call by call. `called`: they are a function's body."""

    def __init__(self, program: _Program, called: bool = False) -> None:
        self.program = program
        self.called = called
        self.effects: list[Effect] = []
        self.calls: list[Call] = []
        self.links: Links = defaultdict(list)
        self.uncertain: list[tuple[int, str]] = []
        self.changed: set[tuple[Scope, str]] = set()

    def run(self, body: Sequence[ast.AST], scope: Scope) -> None:
        waiting = [(node, scope) for node in reversed(body)]
        while waiting:
            node, scope = waiting.pop()
            self._statement(scope, node)
            below = [item for block in blocks(node) for item in block]
            if isinstance(node, ast.ClassDef):  # its body runs here
                below, scope = list(node.body), self.program.scopes[node]
            waiting += [(item, scope) for item in reversed(below)]

    def _statement(self, scope: Scope, node: ast.AST) -> None:
        """What a simple statement or a header does."""
        header = [child for child in children(node) if not isinstance(child, STATEMENTS)]
        if isinstance(node, ast.Assign):
            self._assignment(scope, node)
        elif isinstance(node, SCOPED):
            self._assign(scope, [node.name], 3, node.lineno)
            if isinstance(node, FUNCTIONS):  # it may be called, some time
                self.calls.append(Call(self.program.scopes[node], node.lineno))
            self._evaluate(scope, header)
        elif isinstance(node, ast.Expr):
            value = node.value.value if isinstance(node.value, ast.Await) else node.value
            self._evaluate(scope, [value], bare=value)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self._evaluate(scope, [node.value], stored=True)
                self._evaluate(scope, [node.target], self._rule(scope, node.value))
        else:
            self._evaluate(scope, header, stored=isinstance(node, ast.AugAssign))
            names = scope.parts[node].binds if isinstance(node, IMPORTS) else set()
            if isinstance(node, ast.match_case):
                names = scope.parts[node.pattern].binds
            elif isinstance(node, ast.ExceptHandler) and node.name:
                names = {node.name}
            elif isinstance(node, ast.AugAssign) and not isinstance(node.target, ast.Subscript):
                # A number is replaced, a list or a tensor is changed.
                path, _ = _held(node.target)
                if path:
                    self._emit(scope, path, How.MUTATED, 3, node.lineno)
            elif isinstance(node, ast.Return) and node.value:
                self._escape(scope, node.value)
            self._assign(scope, names, 3, first_line(node))

    def _assignment(self, scope: Scope, node: ast.Assign) -> None:
        self._evaluate(scope, [node.value], stored=True)
        rule = self._rule(scope, node.value)
        names = [_held(part)[0] for target in node.targets for part in [target, *children(target)]]
        known = any(
            (scope.owner(name.partition(".")[0]), name) in self.changed for name in names if name
        )
        if rule == 3 and known and self.program.sources(scope, node.value, iterated=True):
            rule = 0  # something that has changed is now what another name is
            self._doubt(node)
        self._evaluate(scope, node.targets, rule)
        if any(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets):
            self._escape(scope, node.value)

    def _rule(self, scope: Scope, value: ast.AST) -> int:
        """The rule for the targets of an assignment."""
        call = value.value if isinstance(value, ast.Await) else value
        if not isinstance(call, ast.Call):
            return 3
        if not isinstance(call.func, ast.Attribute):
            return 2
        path, _ = _held(call.func.value)
        return 1 if path and not self._is_library(scope, path, call.func.attr) else 2

    def _assign(self, scope: Scope, names: Iterable[str], rule: int, line: int) -> None:
        for name in names:
            self._emit(scope, name, How.ASSIGNED, rule, line)

    def _emit(
        self, scope: Scope, path: str, how: How, rule: int, line: int, sure: bool = True
    ) -> None:
        root, _, rest = path.partition(".")
        owner = scope.owner(root)
        self.changed.add((owner, path))
        self.effects.append(Effect(owner, path, how, rule, line, sure))
        own = owner.parent if owner.receiver == root else None
        if own is None:
            return
        shared = sure and rest.partition(".")[0] in own.binds - own.attributes
        if shared or rest.startswith("__class__."):  # whoever `self` is
            of_class = _of_class(own, rest.removeprefix("__class__."))
            self.effects.append(Effect(of_class.owner, of_class.path, how, rule, line, sure))

    def _called(self, scope: Scope, node: ast.Call, rule: int) -> None:
        """What is called may be an object, a closure or a method, which change what they hold."""
        path, _ = _held(node.func)
        if path:
            owner = scope.owner(path.partition(".")[0])
            self.effects.append(Effect(owner, path, How.CALLED, rule, node.lineno, sure=False))

    def _give(self, scope: Scope, nodes: Iterable[ast.AST], how: How, rule: int) -> None:
        """Arguments are handed to something that changes them, for certain or perhaps."""
        for node in nodes:
            for source in self.program.given(scope, node):
                line, sure = getattr(node, "lineno", 0), how is not How.PASSED
                self.effects.append(Effect(source.owner, source.path, how, rule, line, sure))

    def _escape(self, scope: Scope, value: ast.AST) -> None:
        """What a function returns, yields or stores somewhere can be changed from there."""
        if self.called and isinstance(value, ast.Name):
            self._give(scope, [value], How.PASSED, 5)

    def _doubt(self, node: ast.expr | ast.stmt) -> None:
        text = " ".join(ast.unparse(node).split())
        self.uncertain.append((node.lineno, text if len(text) <= 80 else text[:79] + "…"))

    def _evaluate(
        self,
        scope: Scope,
        roots: Iterable[ast.AST],
        rule: int = 3,
        stored: bool = False,
        bare: ast.AST | None = None,
    ) -> None:
        """All that happens in expressions and targets. `rule` is for what they bind.

        `stored`: the value is assigned to something. `bare`: a call that is a whole statement.
        """
        waiting = [(root, scope) for root in roots]
        while waiting:
            node, scope = waiting.pop()
            below = children(node)
            if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
                self._variable(scope, node, rule)
            elif isinstance(node, ast.Call):
                self._call(scope, node, stored, node is bare)
                below = [*node.args, *node.keywords]
                if isinstance(node.func, ast.Attribute):
                    below.append(node.func.value)
                elif not isinstance(node.func, ast.Name):
                    below.append(node.func)
            elif isinstance(node, ast.NamedExpr):
                self._evaluate(scope, [node.target], self._rule(scope, node.value))
                self._link(node.target, scope, node.value, scope)
                below = [node.value]
            elif isinstance(node, ast.Lambda):
                self.calls.append(Call(self.program.scopes[node], node.lineno))
                below = [node.args]
            elif isinstance(node, COMPREHENSIONS):
                waiting += self._comprehension(scope, node)
                below = []
            elif isinstance(node, (ast.Yield, ast.YieldFrom)) and node.value:
                self._escape(scope, node.value)
            waiting += [(item, scope) for item in below]

    def _variable(
        self, scope: Scope, node: ast.Name | ast.Attribute | ast.Subscript, rule: int
    ) -> None:
        """A name or path that is bound, or one that may mean a function of this file."""
        path, inside = _held(node)
        if path and not isinstance(node.ctx, ast.Load):
            how = How.MUTATED if inside else How.ASSIGNED
            self._emit(scope, path, how, 4 if inside else rule, node.lineno)
        elif isinstance(node, ast.Name):
            functions = scope.owner(node.id).inner.get(node.id, [])
            self.calls += [Call(found, node.lineno) for found in functions if not found.is_class]
        elif isinstance(node, ast.Attribute) and (own := self._own_class(scope, node.value)):
            call = ast.Call(node, [], [], lineno=node.lineno)
            self._follow(scope, own.inner.get(node.attr, []), call, 4)

    def _comprehension(self, scope: Scope, node: Comprehension) -> list[tuple[ast.AST, Scope]]:
        inner = self.program.scopes[node]
        below: list[tuple[ast.AST, Scope]] = [(value, inner) for value in values(node)]
        for generator in node.generators:
            around = scope if generator is node.generators[0] else inner
            below += [(generator.iter, around), *((test, inner) for test in generator.ifs)]
            self._link(generator.target, inner, generator.iter, around, iterated=True)
        return below

    # -- calls ------------------------------------------------------------------------------

    def _call(self, scope: Scope, node: ast.Call, stored: bool, bare: bool) -> None:
        by_name, by_object = (2, 1) if stored else (5, 4)
        if isinstance(node.func, ast.Name):
            self._named(scope, node, node.func.id, by_name, bare)
        elif not isinstance(node.func, ast.Attribute):
            self._called(scope, node, by_name)
            self._unknown(scope, node, by_name, bare)
        else:
            path, _ = _held(node.func.value)
            own = self._own_class(scope, node.func.value)
            if path and self._is_library(scope, path, node.func.attr):
                full = self.program.imported(scope, path)
                self._library(scope, node, f"{full}.{node.func.attr}", by_name, bare)
            elif own and node.func.attr in own.attributes - own.inner.keys():
                self._called(scope, node, by_name)  # self.model(x): no method of self
                self._unknown(scope, node, by_name, bare)
            else:
                self._method(scope, node, node.func, by_object)

    def _named(self, scope: Scope, node: ast.Call, name: str, rule: int, bare: bool) -> None:
        owner = scope.owner(name)
        known = owner.inner.get(name, [])
        full = self.program.imported(scope, name)
        lambdas = any(isinstance(inner.node, ast.Lambda) for inner in known)
        for inner in known:
            made = [m for n in CONSTRUCTORS for m in inner.inner.get(n, ()) if inner.is_class]
            self._follow(scope, made or [inner], node, rule)
            if inner.is_class and not made:  # a data class keeps what it is given
                self._give(scope, [*node.args, *node.keywords], How.PASSED, rule)
        if scope.is_builtin(name):
            if name in CHANGING_BUILTINS:
                self._give(scope, node.args[:1], How.MUTATED, rule)
            elif name in DYNAMIC and not (name == "vars" and node.args):
                self._doubt(node)
        elif full:
            self._library(scope, node, full, rule, bare)
        elif not known or (name in owner.stored and not lambdas):
            if name in owner.binds or self.program.has_stars:
                self._called(scope, node, rule)
            self._unknown(scope, node, rule, bare)

    def _method(self, scope: Scope, node: ast.Call, func: ast.Attribute, rule: int) -> None:
        path, _ = _held(func.value)
        own = self._own_class(scope, func.value)
        methods = (own.inner.get(func.attr) if own else None) or self.program.methods[func.attr]
        self._follow(scope, methods, node, rule)
        if not methods:
            for argument in node.args:
                self._escape(scope, argument)
        reads = func.attr in READERS and not methods and not node.args
        if reads or (own and methods):
            return
        if path and not scope.is_builtin(path.partition(".")[0]):
            torch_like = func.attr.endswith("_") and not func.attr.endswith("__")
            sure = func.attr in MUTATORS or torch_like
            self._emit(scope, path, How.MUTATED, rule, node.lineno, sure)

    def _is_library(self, scope: Scope, path: str, attribute: str) -> bool:
        """Whether an attribute of `path` is a library's function, not an object's method."""
        inside = path.partition(".")[0] in scope.owner(path.partition(".")[0]).modules
        return self.program.is_module(scope, path) or (inside and attribute not in MUTATORS)

    def _library(self, scope: Scope, node: ast.Call, full: str, rule: int, bare: bool) -> None:
        torch_like = full.endswith("_") and not full.endswith("__")
        if full.startswith(tuple(IN_PLACE)) or (torch_like and not full.startswith("operator.")):
            self._give(scope, [*node.args, *node.keywords][:1], How.MUTATED, rule)
        elif full.partition(".")[0] not in PURE_LIBRARIES:
            self._called(scope, node, rule)
            self._unknown(scope, node, rule, bare)
        outputs = [keyword for keyword in node.keywords if keyword.arg == "out"]
        self._give(scope, outputs, How.MUTATED, rule)

    def _unknown(self, scope: Scope, node: ast.Call, rule: int, bare: bool) -> None:
        self._give(scope, [*node.args, *node.keywords], How.PASSED, rule)
        if bare:
            self._doubt(node)

    def _own_class(self, scope: Scope, node: ast.AST) -> Scope | None:
        """The class whose `self` an expression is."""
        if not isinstance(node, ast.Name):
            return None
        owner = scope.owner(node.id)
        return owner.parent if owner.receiver == node.id else None

    def _follow(self, scope: Scope, functions: Sequence[Scope], node: ast.Call, rule: int) -> None:
        """Functions of this file that a call may mean, with what their parameters are given."""
        functions = [found for found in functions if not found.is_class]
        if not functions:
            return
        given = [self.program.given(scope, argument) for argument in [*node.args, *node.keywords]]
        receiver = self._receiver(scope, node.func)
        for function in functions:
            found: defaultdict[str, list[Source]] = defaultdict(list)
            if function.receiver:
                found[function.receiver] += [*receiver, *self._class(scope, function, node)]
            for names, sources in zip(_taking(function, node), given, strict=True):
                for name in names:
                    found[name] += sources
            arguments = tuple((name, tuple(sources)) for name, sources in found.items())
            self.calls.append(Call(function, node.lineno, rule, arguments))

    def _receiver(self, scope: Scope, func: ast.AST) -> list[Source]:
        """What `self` is in a method that is called: of others than one's own as a whole, since
        the method may be that of another class."""
        if not isinstance(func, ast.Attribute):
            return []
        found = self.program.sources(scope, func.value)
        if self._own_class(scope, func.value):
            return found
        return [source._replace(inside=True) for source in found]

    def _class(self, scope: Scope, function: Scope, node: ast.Call) -> list[Source]:
        """The classes that a class method may be called on."""
        decorators = getattr(function.node, "decorator_list", [])
        names = [item.id for item in decorators if isinstance(item, ast.Name)]
        if function.parent is None or "classmethod" not in names:
            return []
        found = [_of_class(function.parent)]
        on = node.func.value if isinstance(node.func, ast.Attribute) else None
        if isinstance(on, ast.Name) and scope.owner(on.id).inner.get(on.id):
            found.append(Source(scope.owner(on.id), on.id))
        return list(dict.fromkeys(found))

    # -- names for one object ---------------------------------------------------------------

    def link(self, scope: Scope) -> None:
        """Find the names that are given to objects anywhere in a function or module."""
        waiting = list(getattr(scope.node, "body", ()))
        while waiting:
            node = waiting.pop()
            waiting += [item for block in blocks(node) for item in block]
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._link(target, scope, node.value, scope)
                    if not isinstance(node.value, ast.Constant):  # a = b = []
                        self._link(target, scope, node.targets[0], scope)
            elif isinstance(node, ast.AnnAssign) and node.value:
                self._link(node.target, scope, node.value, scope)
            elif isinstance(node, (ast.For, ast.AsyncFor)):
                self._link(node.target, scope, node.iter, scope, iterated=True)

    def _link(
        self,
        target: ast.AST,
        scope: Scope,
        value: ast.AST,
        around: Scope,
        iterated: bool = False,
    ) -> None:
        """Note that a target is another name for what a value is, or for elements of it."""
        if isinstance(target, (ast.Tuple, ast.List)):
            plain = not any(isinstance(part, ast.Starred) for part in target.elts)
            if isinstance(value, (ast.Tuple, ast.List)) and plain and not iterated:
                for part, item in zip(target.elts, value.elts):  # noqa: B905 - may be wrong code
                    self._link(part, scope, item, around)
            else:
                for part in target.elts:
                    self._link(part, scope, value, around, iterated=True)
            return
        path, inside = _held(target)
        if not path or inside:
            return
        owner = scope.owner(path.partition(".")[0])
        for source in self.program.sources(around, value, iterated):
            one, other = f"{path}.", f"{source.path}."
            if owner is source.owner and (one.startswith(other) or other.startswith(one)):
                continue  # `node = node.next`
            self.links[owner, path].append(source)
            if not source.inside:
                self.links[source.owner, source.path].append(Source(owner, path))
