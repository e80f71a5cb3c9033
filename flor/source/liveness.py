"""Which variables may still be read after a place in a script. Pure.

Control flow is laid over the parts of one scope and solved backwards: a name is live where some
way on reads it before it is bound for certain. Where that cannot be known, the name is live:

- A function, lambda, generator expression or class body may read its free names at any time.
- `global` and `nonlocal` names, and what a function takes from outside, have readers elsewhere.
- Code that uses `exec`, `eval`, `globals`, `locals` or bare `vars` may read everything.
- Anything inside `try` may raise, and a `with` may swallow an exception.

Only names are followed: `self.x = 1` and `table[k] = 1` read `self` and `table`. `del x` ends x and
reads nothing, although it needs x to be there. Lambdas and comprehensions have no lines of their
own here: a line means the function, class body or module around them. Where a line holds nothing
of the kind that is asked for, the answer is every name, so that none is missed.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from flor.source.names import (
    DYNAMIC,
    SCOPED,
    TRY_STAR,
    WITHS,
    Scope,
    covering,
    header_end,
    loop_at,
    scope_node,
    scopes,
    words,
)

# Context managers, by the last part of their name, that let every exception through.
TRANSPARENT = words("""
    GradientTape NamedTemporaryFile SummaryWriter TemporaryDirectory accumulate autocast
    catch_warnings checkpointing closing detect_anomaly device enable_grad inference_mode no_grad
    no_sync nullcontext open profile record_function set_grad_enabled stream tqdm
""")
EXIT = 0  # the point after the end of the scope


def live_after(tree: ast.Module, line: int) -> frozenset[str]:
    """Names that may be read before they are bound again, once the loop at `line` has ended.

    `line` is in the loop's header; its `else` comes after.
    """
    found = loop_at(tree, line)
    home = scope_node(tree, line)
    return _live(tree, home, lambda flow: flow.ends[found[0]] if found else [])


def live_at_head(tree: ast.Module, line: int) -> frozenset[str]:
    """The same between two iterations of the loop at `line`."""
    found = loop_at(tree, line)
    home = scope_node(tree, line)
    return _live(tree, home, lambda flow: flow.heads[found[0]] if found else [])


def live_at(tree: ast.Module, line: int) -> frozenset[str]:
    """The same just before the statement, or the header, at `line` is executed (again)."""
    home = scope_node(tree, line)
    here = [node for node, around in covering(tree, line) if around is home]
    heads = [node for node in here if line <= header_end(node)]
    return _live(
        tree, home, lambda flow: [p for n in heads for p in flow.heads[n] + flow.starts[n]]
    )


def live_at_begin(tree: ast.Module) -> frozenset[str]:
    """The same before the first statement of a module, whatever else is in its line."""
    first = tree.body[0]
    return _live(tree, tree, lambda flow: flow.heads[first] + flow.starts[first])


def _live(
    tree: ast.Module, home: ast.AST, choose: Callable[[_Flow], Sequence[int]]
) -> frozenset[str]:
    """The names that are live at any of the chosen points of a scope."""
    known = scopes(tree)
    module, scope = known[tree], known[home]
    flow = _Flow(scope)
    points = choose(flow)
    always = set(scope.later)
    if scope is not module:
        always |= scope.globals | scope.nonlocals | (scope.reads() - scope.binds)
    dynamic = DYNAMIC & (module.reads() | module.later) - module.binds
    if dynamic or not points:
        names = always | scope.binds | scope.reads()
    else:
        names = always | flow.solve(always, points)
    return frozenset(name for name in names if not scope.is_builtin(name))


@dataclass(eq=False)
class _Jumps:
    """Where `break`, `continue`, `return` and exceptions lead to: points.

    What is not among `targets` runs a `finally` first and then goes where `outer` says. Each kind
    of jump gets its own copy of the `finally` block, as in byte code.
    """

    targets: dict[str, int]
    outer: _Jumps | None = None
    final: Sequence[ast.AST] = ()


class _Flow:
    """The points of one scope: what each reads and binds, and what comes next.

    Built from the end: the point that follows is always there already.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.bits: dict[str, int] = {}
        self.reads = [0]
        self.binds = [0]
        self.next: list[list[int]] = [[]]
        self.fails = [EXIT]  # where an exception goes to
        self.starts: defaultdict[ast.AST, list[int]] = defaultdict(list)
        self.heads: defaultdict[ast.AST, list[int]] = defaultdict(list)
        self.ends: defaultdict[ast.AST, list[int]] = defaultdict(list)
        if scope.is_class:
            self.reads[EXIT] = self._mask(scope.binds)  # they become its attributes
        assert isinstance(scope.node, (ast.Module, *SCOPED))
        leave = dict.fromkeys(["break", "continue", "return", "raise"], EXIT)
        self._block(scope.node.body, EXIT, _Jumps(leave))

    def solve(self, always: set[str], points: Sequence[int]) -> set[str]:
        """The names live at any of the points; `always` are never ended."""
        forever = self._mask(always)
        keeps = [~binds | forever for binds in self.binds]
        live = [0] * len(keeps)
        changed = True
        while changed:
            changed = False
            for point, following in enumerate(self.next):
                after = 0
                for follower in following:
                    after |= live[follower]
                now = self.reads[point] | after & keeps[point] | live[self.fails[point]]
                if now != live[point]:
                    live[point] = now
                    changed = True
        found = 0
        for point in points:
            found |= live[point]
        return {name for name, bit in self.bits.items() if found & bit}

    def _mask(self, names: Iterable[str]) -> int:
        mask = 0
        for name in names:
            mask |= self.bits.setdefault(name, 1 << len(self.bits))
        return mask

    def _point(self, part: ast.AST | None, following: list[int], jumps: _Jumps) -> int:
        """A new point that evaluates one part."""
        names = self.scope.parts[part] if part is not None else None
        self.reads.append(self._mask(names.reads) if names else 0)
        self.binds.append(self._mask(names.binds) if names else 0)
        self.next.append(following)
        self.fails.append(self._target(jumps, "raise"))
        return len(self.next) - 1

    def _target(self, jumps: _Jumps, kind: str) -> int:
        if kind not in jumps.targets:
            assert jumps.outer is not None
            after = self._target(jumps.outer, kind)
            jumps.targets[kind] = self._block(jumps.final, after, jumps.outer)
        return jumps.targets[kind]

    def _block(self, body: Sequence[ast.AST], after: int, jumps: _Jumps) -> int:
        for node in reversed(body):
            start = self._statement(node, after, jumps)
            self.starts[node].append(start)
            after = start
        return after

    def _statement(self, node: ast.AST, after: int, jumps: _Jumps) -> int:
        if isinstance(node, ast.If):
            return self._if(node, after, jumps)
        if isinstance(node, ast.While):
            return self._while(node, after, jumps)
        if isinstance(node, (ast.For, ast.AsyncFor)):
            return self._for(node, after, jumps)
        if isinstance(node, WITHS):
            return self._with(node, after, jumps)
        if isinstance(node, (ast.Try, TRY_STAR)):
            return self._try(node, after, jumps)
        if isinstance(node, ast.Match):
            return self._match(node, after, jumps)
        if isinstance(node, ast.Raise):
            return self._point(node, [], jumps)
        kinds = {ast.Return: "return", ast.Break: "break", ast.Continue: "continue"}
        kind = kinds.get(type(node))
        return self._point(node, [self._target(jumps, kind) if kind else after], jumps)

    def _if(self, node: ast.If, after: int, jumps: _Jumps) -> int:
        chain = [node]  # of elifs: not one level of recursion for each
        while len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
            node = node.orelse[0]
            chain.append(node)
        start = self._block(node.orelse, after, jumps)
        for branch in reversed(chain):
            start = self._point(branch, [self._block(branch.body, after, jumps), start], jumps)
            self.starts[branch].append(start)
        return start

    def _while(self, node: ast.While, after: int, jumps: _Jumps) -> int:
        head = self._point(node, [], jumps)
        otherwise = self._block(node.orelse, after, jumps)
        inside = _Jumps({"break": after, "continue": head}, jumps)
        self.next[head].append(self._block(node.body, head, inside))
        if not (isinstance(node.test, ast.Constant) and node.test.value):
            self.next[head].append(otherwise)
        self.heads[node].append(head)
        self.ends[node] += [otherwise, after]
        return head

    def _for(self, node: ast.For | ast.AsyncFor, after: int, jumps: _Jumps) -> int:
        head = self._point(None, [], jumps)
        otherwise = self._block(node.orelse, after, jumps)
        inside = _Jumps({"break": after, "continue": head}, jumps)
        body = self._block(node.body, head, inside)
        self.next[head] += [self._point(node.target, [body], jumps), otherwise]
        self.heads[node].append(head)
        self.ends[node] += [otherwise, after]
        return self._point(node.iter, [head], jumps)

    def _with(self, node: ast.With | ast.AsyncWith, after: int, jumps: _Jumps) -> int:
        inside = jumps
        if any(self._may_swallow(item.context_expr) for item in node.items):
            swallowed = self._point(None, [after], jumps)
            inside = _Jumps({"raise": swallowed}, jumps)
        start = self._block(node.body, after, inside)
        for item in reversed(node.items):
            start = self._point(item, [start], inside)
        return start

    def _may_swallow(self, manager: ast.expr) -> bool:
        called = manager.func if isinstance(manager, ast.Call) else manager
        if isinstance(called, ast.Name):
            ours = called.id in self.scope.owner(called.id).inner
            return ours or called.id not in TRANSPARENT
        return not (isinstance(called, ast.Attribute) and called.attr in TRANSPARENT)

    def _try(self, node: ast.Try, after: int, jumps: _Jumps) -> int:
        around = _Jumps({}, jumps, node.finalbody)
        after = self._block(node.finalbody, after, jumps)
        failed = self._target(around, "raise")
        for handler in reversed(node.handlers):
            ended = [after, failed] if isinstance(node, TRY_STAR) else [after]
            end = self._point(None, ended, around)
            binding = self._point(None, [self._block(handler.body, end, around)], around)
            if handler.name:
                self.binds[end] = self.binds[binding] = self._mask([handler.name])
            failed = self._point(handler, [binding, failed] if handler.type else [binding], around)
            self.starts[handler].append(failed)
        otherwise = self._block(node.orelse, after, around)
        return self._block(node.body, otherwise, _Jumps({"raise": failed}, around))

    def _match(self, node: ast.Match, after: int, jumps: _Jumps) -> int:
        start = after
        for case in reversed(node.cases):
            unmatched = start
            start = self._block(case.body, after, jumps)
            if case.guard:
                start = self._point(case.guard, [start, unmatched], jumps)
            start = self._point(case.pattern, [start], jumps)
            anything = isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None
            if case.guard or not anything:
                # Its names are bound only if it matches; what it reads is read before that.
                start = self._point(case.pattern, [start, unmatched], jumps)
                self.binds[start] = 0
            self.starts[case].append(start)
        return self._point(node, [start], jumps)
