"""What a loop changes: the rules of the paper's Table 2 and what is added to them."""

import ast
import copy
import functools
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flor.source.changeset import LoopChanges, function_changes, loop_changes
from flor.source.effects import Change, How
from tests.test_gradients import verdict


def changes_of(program: str) -> LoopChanges:
    """The changes of the loop that is marked `# here`, or of the program's first loop."""
    text = textwrap.dedent(program).strip("\n")
    lines = text.split("\n")
    marked = [n for n, line in enumerate(lines, 1) if "# here" in line]
    first = [n for n, line in enumerate(lines, 1) if line.strip().startswith(("for ", "while "))]
    found = loop_changes(ast.parse(text), (marked or first)[0])
    assert found is not None
    return found


def changed(program: str) -> dict[str, str]:
    """path → how, for all but the loop's own `i`."""
    return {c.path: c.how.value for c in changes_of(program).changes if c.path != "i"}


def body(*statements: str) -> dict[str, str]:
    """What these statements change in a loop at the top of a script."""
    lines = [line for text in statements for line in text.split("\n")]
    return changed("for i in range(3):\n" + "\n".join(f"    {line}" for line in lines))


# -- the rules ------------------------------------------------------------------------------

RULES = [
    ("v = obj.method(a)", {"obj": ("mutated", (1,)), "v": ("assigned", (1,))}),
    ("v, w = func(a)", {"a": ("passed", (2,)), "v": ("assigned", (2,)), "w": ("assigned", (2,))}),
    ("v = u + 1", {"v": ("assigned", (3,))}),
    ("obj.method(a)", {"obj": ("mutated", (4,))}),
    ("func(a, k=b)", {"a": ("passed", (5,)), "b": ("passed", (5,))}),
    ("await obj.method(a)", {"obj": ("mutated", (4,))}),
    ("v = await func(a)", {"a": ("passed", (2,)), "v": ("assigned", (2,))}),
    ("v = 1\nv = u", {"v": ("assigned", (0, 3))}),
]


@pytest.mark.parametrize(("statement", "expected"), RULES, ids=[rule[0] for rule in RULES])
def test_the_rules_of_the_paper(statement: str, expected: dict[str, tuple[str, tuple[int, ...]]]):
    program = "for i in range(3):\n" + textwrap.indent(statement, "    ")
    if "await" in statement:
        program = "async def main():\n" + textwrap.indent(program, "    ")
    found = {c.path: (c.how.value, c.rules) for c in changes_of(program).changes}
    del found["i"]
    assert found == expected


def test_what_is_not_understood_is_listed():
    """Rule 0 and rule 5; a call with an estimate is none."""
    found = changes_of("""
        def known(x): pass
        for i in range(3):
            mystery(state)
            known(state)
            print(state)
            best = 0
            best = current
            best = 1
            state.update(1)
            exec(code)
            mystery(aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa, bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb, cccccccccc)
    """)
    assert found.uncertain == (
        (3, "mystery(state)"),
        (7, "best = current"),
        (10, "exec(code)"),
        (11, f"mystery({'a' * 32}, {'b' * 37}…"),
    )
    assert len(found.uncertain[-1][1]) == 80


def test_a_change_tells_the_surest_way_and_the_first_line():
    (change,) = changes_of("""
        for best in range(3):
            use(best)
            best.append(1)
    """).changes
    assert change == Change("best", How.ASSIGNED, (3, 4, 5), "local", 1)


# -- binding --------------------------------------------------------------------------------

BINDINGS = [
    ("n += 1", {"n": "assigned"}),
    ("n: int = 1", {"n": "assigned"}),
    ("n: int", {}),
    ("for x, *y in rows: pass", {"x": "assigned", "y": "assigned"}),
    ("with f() as a, g() as (b, c): pass", {"a": "assigned", "b": "assigned", "c": "assigned"}),
    ("if (n := 3): pass", {"n": "assigned"}),
    ("import a.b, c as d", {"a": "assigned", "d": "assigned"}),
    ("from a import b as c", {"c": "assigned"}),
    ("def f(x): y = x", {"f": "assigned"}),
    ("class A: y = 1", {"A": "assigned"}),
    ("del n", {"n": "assigned"}),
    ("try: pass\nexcept E as e: pass", {"e": "assigned"}),
    ("match p:\n    case [a, *b]: pass\n    case {'k': c, **d}: pass\n    case A(x=e) as f: pass",
     dict.fromkeys("abcdef", "assigned")),
    ("a = b = 1", {"a": "assigned", "b": "assigned"}),
    ("self.best = 1", {"self.best": "assigned"}),
    ("state.metrics.acc += 1", {"state.metrics.acc": "assigned"}),
    ("del state.acc", {"state.acc": "assigned"}),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "expected"), BINDINGS, ids=[b[0] for b in BINDINGS])
def test_what_binds(statement: str, expected: dict[str, str]):
    assert body(statement) == expected


def test_comprehensions_bind_nothing_but_by_walrus():
    assert body("z = [x for x in y if (last := x)]") == {"z": "assigned", "last": "assigned"}
    assert body("z = {x: y for x, y in y}", "z = (x for x in y)") == {"z": "assigned"}


# -- mutation -------------------------------------------------------------------------------

MUTATIONS = [
    ("h[0] = 1", {"h": "mutated"}),
    ("h[0] += 1", {"h": "mutated"}),
    ("del h[0]", {"h": "mutated"}),
    ("h[0][1].x = 1", {"h": "mutated"}),
    ("self.h[k].x = 1", {"self.h": "mutated"}),
    ("(a, h[0]) = 1, 2", {"a": "assigned", "h": "mutated"}),
    ("a.b.c(1)", {"a.b": "mutated"}),
    ("a[0].c(1)", {"a": "mutated"}),
    ("self.groups[0].opt.step()", {"self.groups": "mutated"}),
    ("a.b().c()", {"a": "mutated"}),
    ("super().x()", {}),
    ("(a + b).x()", {}),
    ("' '.join(a)", {}),
    ("dict.fromkeys(a)", {}),
    ("if a.is_done(): pass", {"a": "mutated"}),
    ("[x.append(1) for x in rows]", {"rows": "mutated"}),
    ("for g in opt.groups: g['lr'] = 1", {"g": "assigned", "opt.groups": "mutated"}),
    ("for k, (a, b) in enumerate(rows): b.append(1)",
     {"k": "assigned", "a": "assigned", "b": "assigned", "rows": "mutated"}),
    ("for x in loader: x = x.to(device)", {"x": "assigned"}),
    ("for p in [w, b]: p -= 1", {"p": "assigned", "w": "mutated", "b": "mutated"}),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "expected"), MUTATIONS, ids=[m[0] for m in MUTATIONS])
def test_what_mutates(statement: str, expected: dict[str, str]):
    assert body(statement) == expected


def test_a_subscript_reads_its_index():
    assert body("h[q.get()] = 1") == {"h": "mutated", "q": "mutated"}


# -- calls ----------------------------------------------------------------------------------

CALLS = [
    ("f(a.b, h[0], *c, **d)", dict.fromkeys(["a.b", "h", "c", "d"], "passed")),
    ("f([a, b], (c if d else e), 1, a + 1)", dict.fromkeys("abce", "passed")),
    ("f(g(a))", {"a": "passed"}),
    ("hooks[0](a)", {"a": "passed", "hooks": "called"}),
    ("print(len(a), max(b), isinstance(c, int), sorted(d))", {}),
    ("x = next(it)", {"x": "assigned", "it": "mutated"}),
    ("setattr(a.b, 'c', 1)", {"a.b": "mutated"}),
    ("flor.log('loss', f(a))", {"a": "passed"}),
    ("f(print, range)", {}),
    ("obj.method(a)", {"obj": "mutated"}),
]


@pytest.mark.parametrize(("statement", "expected"), CALLS, ids=[c[0] for c in CALLS])
def test_what_calls_change(statement: str, expected: dict[str, str]):
    assert body(statement) == expected


MODULES = """
import heapq, random, math
import numpy as np, torch, bisect
import torch.nn.functional as F
import mylib
import config
from torch import nn
from random import shuffle
from os import path
from state import history
"""


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("np.mean(a); torch.save(a, 'x'); F.relu(a); math.exp(a); path.join(a)", {}),
        ("nn.init.normal_(w)", {"w": "mutated"}),
        ("nn.utils.clip_grad_norm_(net.p, 1.0)", {"net.p": "mutated"}),
        ("random.shuffle(a); np.random.shuffle(b)", {"a": "mutated", "b": "mutated"}),
        ("shuffle(a)", {"a": "mutated"}),
        ("heapq.heappush(h, x)", {"h": "mutated"}),
        ("bisect.insort(h, x)", {"h": "mutated"}),
        ("np.add(a, b, out=c)", {"c": "mutated"}),
        ("mylib.train(a)", {"a": "passed", "mylib.train": "called"}),
        ("x = mylib.train(a)", {"a": "passed", "x": "assigned", "mylib.train": "called"}),
        ("config.seen.append(1)", {"config.seen": "mutated"}),
        ("history.append(1)", {"history": "mutated"}),
        ("f(np.float32, torch)", {}),
        ("torch.manual_seed(0); np.random.rand(3)", {}),
    ],
)
def test_functions_of_modules(statement: str, expected: dict[str, str]):
    assert changed(f"{MODULES}\nfor i in range(3):\n    {statement}") == expected


def test_a_function_of_this_file_is_looked_into():
    assert changed("""
        seen = []
        def remember(x, log, unused, *more, key=None):
            global last
            last = x
            seen.append(x)
            log["n"] = 1
            other(key)
            more[0].clear()
            local = 1
        for i in range(3):
            remember(a, b, c, d, key=e)
    """) == {
        "last": "assigned",
        "seen": "mutated",
        "a": "passed",
        "b": "mutated",
        "d": "mutated",
        "e": "passed",
    }


def test_functions_are_followed_through_functions():
    assert changed("""
        def outer(state): inner(state.log)
        def inner(log): push(log)
        def push(xs): xs.append(1); seen.add(1)
        for i in range(3):
            outer(s)
    """) == {"s.log": "mutated", "seen": "mutated"}


def test_functions_that_call_each_other():
    assert changed("""
        def even(n, log): log.append(n); odd(n - 1, log)
        def odd(n, log): global count; count += 1; even(n - 1, log)
        for i in range(3):
            even(4, a)
            odd(3, b)
    """) == {"a": "mutated", "b": "mutated", "count": "assigned"}


@pytest.mark.parametrize(
    ("function", "how"),
    [
        ("def f(x): pass", None),
        ("def f(x): return x + 1", None),
        ("def f(x): x = 1", None),
        ("def f(x): print(len(x))", None),
        ("def f(x): return net(x)", "passed"),
        ("def f(x): return x", "passed"),
        ("def f(x): self.x = x", "passed"),
        ("def f(x): rows.append(x)", "passed"),
        ("def f(x): x.step()", "mutated"),
        ("def f(x): x[0] = 1", "mutated"),
        ("def f(x): x += [1]", "mutated"),
        ("def f(x):\n    y = x\n    y.append(1)", "mutated"),
        ("def f(x):\n    for y in x: y.append(1)", "mutated"),
        ("def f(*xs): xs[0].append(1)", "mutated"),
        ("def f(**xs): xs['x'].append(1)", None),
        ("f = lambda x: x.append(1)", "mutated"),
        ("class f:\n    def __init__(self, x): x.append(1)", "mutated"),
        ("class f:\n    x: list", "passed"),
    ],
)
def test_what_a_function_does_to_its_parameter(function: str, how: str | None):
    found = changed(f"{function}\nfor i in range(3):  # here\n    f(a)")
    assert found.get("a") == how


def test_an_attribute_that_a_function_assigns():
    assert changed("""
        def step(state): state.count += 1
        for i in range(3):
            step(run.state)
            step(rows[0])
    """) == {"run.state.count": "assigned", "rows": "mutated"}


TRAINER = """
class Trainer(Base):
    def __init__(self, model):
        self.model = model
        self.best = 0
    def run(self):
        for i in range(3):
            {}
    def step(self, batch):
        self.count += 1
        self.log.append(batch)
        self.report()
        batch.pop()
    def report(self):
        self.reported = True
    @staticmethod
    def clean(xs): xs.clear()
"""


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("self.step(b)", {"self.count": "assigned", "self.log": "mutated", "b": "mutated",
                          "self.reported": "assigned"}),
        ("self.best = 1", {"self.best": "assigned"}),
        ("self.clean(b)", {"b": "mutated"}),
        ("y = self.model(b)", {"y": "assigned", "b": "passed", "self.model": "called"}),
        ("self.model.train()", {"self.model": "mutated"}),
        ("self.inherited(b)", {"self": "mutated"}),
        ("other.step(b)", {"other": "mutated", "b": "mutated"}),
        ("self.pool.map(self.report, b)", {"self.pool": "mutated", "self.reported": "assigned"}),
    ],
)  # fmt: skip
def test_methods(statement: str, expected: dict[str, str]):
    assert changed(TRAINER.format(statement)) == expected


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ("for cb in cbs: cb.tick(1)", "cbs"),
        ("for k, cb in cbs.items(): cb.tick(1)", "cbs"),
        ("for cb, _ in zip(cbs, range(9)): cb.tick(1)", "cbs"),
        ("[cb.tick(1) for cb in cbs]", "cbs"),
        ("cb = cbs[0]; cb.tick(1)", "cbs"),
        ("found = one.tick(1)", "one"),
        ("for cb in cbs: cb.name()", None),
    ],
)
def test_methods_of_this_file_change_what_they_are_called_on(body: str, path: str | None):
    """By whatever name, if they change themselves."""
    program = f"""
        class Stop:
            def tick(self, value): self.bad += value
            def name(self): return self.bad
        for x in y:  # here
            {body}
    """
    found = {item.path for item in changes_of(program).changes if item.how is How.MUTATED}
    assert found == ({path} if path else set())


def test_functions_that_may_be_called_later():
    """A nested body does not run in the loop, but may be called; so may one that is handed on."""
    assert changed("""
        def main():
            total = 0
            best = []
            for i in range(3):
                def closure():
                    nonlocal total
                    global steps
                    total = local = 1
                    steps = 2
                    best.append(local)
                opt.step(closure)
                hook(lambda: seen.clear())
                apply(callback)
        def callback(x): calls.append(x)
    """) == {
        "closure": "assigned", "total": "assigned", "steps": "assigned", "best": "mutated",
        "opt": "mutated", "seen": "mutated", "calls": "mutated",
    }  # fmt: skip


CALLABLES = [
    ("stop = Early()", "if stop(v): break", {"stop": "called"}),
    ("def check(es, v): return es(v)\nstop = Early()", "check(stop, v)", {"stop": "called"}),
    ("def check(es, v): return es(v)\nd = {}", "check(d['s'], v)", {"d": "called"}),
    ("cbs = [Early()]", "[cb(v) for cb in cbs]", {"cbs": "called"}),
    ("cbs = [Early()]", "for cb in cbs: cb(v)", {"cb": "assigned", "cbs": "called"}),
    ("d = {}", "d['s'](v)", {"d": "called"}),
    ("add = history.append", "add(v)", {"add": "called", "history": "mutated"}),
    ("inc = make()", "inc()", {"inc": "called"}),
    ("from mine import stop", "stop(v)", {"stop": "called"}),
    ("from mine import *", "stop(v)", {"stop": "called"}),
    ("def f(v): pass", "f(v); print(v); len(v)", {}),
    ("class Early: pass", "Early()", {}),
    ("stop = Early()\nstop.n = 0", "stop(v); stop.step()", {"stop": "mutated"}),
]  # fmt: skip


@pytest.mark.parametrize(("before", "inside", "expected"), CALLABLES)
def test_what_is_called_may_change(before: str, inside: str, expected: dict[str, str]):
    found = changed(f"{before}\nfor i in range(3):  # here\n    {inside}")
    found.pop("v", None)
    assert found == expected


CLASS = """
class C:
    total, rows = 0, []
    def hit(self): C.total += 1
    def own(self): type(self).total += 1
    def also(self): self.__class__.total += 1
    def add(self): self.rows.append(1)
    @classmethod
    def bump(cls): cls.total += 1
class D(C): pass
c = C()
"""


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("C.total += 1", {"C.total": "assigned"}),
        ("c.hit()", {"c": "mutated", "C.total": "assigned"}),
        ("c.own()", {"c": "mutated", "C.total": "assigned"}),
        ("c.also()", {"c": "mutated", "C.total": "assigned"}),
        ("c.add()", {"c": "mutated", "C.rows": "mutated"}),
        ("c.bump()", {"c": "mutated", "C.total": "assigned"}),
        ("D.bump()", {"D": "mutated", "C.total": "assigned", "D.total": "assigned"}),
    ],
)
def test_attributes_of_classes(statement: str, expected: dict[str, str]):
    assert changed(f"{CLASS}\nfor i in range(3):\n    {statement}") == expected


def test_what_a_call_of_a_function_changes():
    program = textwrap.dedent("""
        def make(limit):
            best, rows = 0, []
            def stop(v, log):
                nonlocal best
                best = max(best, v)
                rows.append(limit)
                log.append(v)
                print(limit)
            return stop
    """)

    found = function_changes(ast.parse(program), 4, "stop")

    assert {(c.path, c.how.value, c.scope) for c in found} == {
        ("best", "assigned", "nonlocal"),
        ("rows", "mutated", "nonlocal"),
        ("log", "mutated", "local"),
        ("limit", "passed", "nonlocal"),
        ("v", "passed", "local"),
    }
    assert function_changes(ast.parse(program), 4, "other") == ()


# -- names for one object -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "inside", "expected"),
    [
        ("a = b", "a.append(1)", {"a": "mutated", "b": "mutated"}),
        ("a = b", "b.append(1)", {"a": "mutated", "b": "mutated"}),
        ("a = b\nc = a", "c.append(1)", dict.fromkeys("abc", "mutated")),
        ("a = b = []", "a.append(1)", {"a": "mutated", "b": "mutated"}),
        ("a = b = 0", "a += 1", {"a": "assigned"}),
        ("a = b", "a = 1", {"a": "assigned"}),
        ("a = b", "a += [1]", {"a": "assigned", "b": "mutated"}),
        ("a = s.log", "a.append(1)", {"a": "mutated", "s.log": "mutated"}),
        ("a = s", "a.best = 1", {"a.best": "assigned", "s.best": "assigned"}),
        ("a, c = b, d", "a.append(1)", {"a": "mutated", "b": "mutated"}),
        ("a = b if c else d", "a.append(1)", dict.fromkeys("abd", "mutated")),
        ("a = b[0]", "a.append(1)", {"a": "mutated", "b": "mutated"}),
        ("a = b[0]", "a.step()", {"a": "mutated"}),
        ("a = b + c", "a.append(1)", {"a": "mutated"}),
        ("a = a.next", "a.x = 1", {"a.x": "assigned"}),
        ("a = b.c\nb = a.d", "a.x.append(1)", None),
    ],
)
def test_a_change_reaches_other_names(before: str, inside: str, expected: dict[str, str] | None):
    found = changed(f"{before}\nfor i in range(3):\n    {inside}")
    assert expected is None or found == expected


# -- scopes and places ----------------------------------------------------------------------


def test_scopes():
    found = changes_of("""
        history = []
        def outer():
            seen = []
            free = 0
            def inner():
                global best
                nonlocal free
                x = 1
                for i in range(3):
                    best = x = free = 1
                    seen.append(x)
                    history.append(x)
                    unknown.append(x)
    """)
    assert {change.path: change.scope for change in found.changes} == {
        "i": "local",
        "x": "local",
        "best": "global",
        "free": "nonlocal",
        "seen": "nonlocal",
        "history": "global",
        "unknown": "global",
    }


def test_at_the_top_of_a_script_all_is_local():
    found = changes_of("def f(): global n; n = 1\nfor i in x:\n    f()\n    log.append(1)")
    assert {change.scope for change in found.changes} == {"local"}


def test_lines_of_loops():
    tree = ast.parse(
        textwrap.dedent("""
        for a in x:
            for b in f(
                y,
            ):
                pass
            while c: d = 1
        else:
            pass
        x = 1
        async def g():
            async for e in x: pass
        """).strip("\n")
    )

    def targets(line: int) -> str | None:
        found = loop_changes(tree, line)
        return found and "".join(change.path for change in found.changes)

    found = [targets(line) for line in range(1, 12)]
    assert found == ["abdy", "by", "by", "by", None, "d", None, None, None, None, "e"]
    both = loop_changes(tree, 1)
    assert both and (both.line, both.end_line) == (1, 8)


def test_the_changes_of_an_inner_loop_are_its_own():
    assert changed("""
        for i in range(3):
            total = 0
            for x, y in loader:  # here
                loss = net(x)
                total += loss
            acc = test(net)
    """) == {
        "x": "assigned",
        "y": "assigned",
        "loss": "assigned",
        "total": "assigned",
    }


# -- gradients ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statements", "grads"),
    [
        ("opt.step()", "unknown"),
        ("opt.zero_grad(); loss.backward(); opt.step()", "cleared"),
        ("net.zero_grad(set_to_none=True)\nscaler.scale(loss).backward()", "cleared"),
        ("loss.backward(); opt.step(); opt.zero_grad()", "kept"),
        ("loss.backward()", "kept"),
        ("if i % 4 == 0: opt.zero_grad()\nloss.backward()", "kept"),
        ("if c: opt.zero_grad()\nelse: opt.zero_grad()\nloss.backward()", "cleared"),
        ("if c: opt.zero_grad()\nelse: net.zero_grad()\nloss.backward()", "kept"),
        ("c and opt.zero_grad()\nloss.backward()", "kept"),
        ("with amp():\n    opt.zero_grad()\nif c: loss.backward()", "cleared"),
        ("for x in y:\n    opt.zero_grad()\n    loss.backward()", "cleared"),
        ("for x in y: opt.zero_grad()\nloss.backward()", "kept"),
        ("def closure():\n    opt.zero_grad()\n    loss.backward()\nopt.step(closure)", "cleared"),
        ("opt.zero_grad(); a.backward(); b.backward()", "cleared"),
    ],
)
def test_whether_gradients_are_cleared(statements: str, grads: str):
    program = "for i in range(3):\n" + textwrap.indent(statements, "    ")
    assert verdict(changes_of(program)) == grads


# -- against brute force --------------------------------------------------------------------

PRELUDE = """
from contextlib import nullcontext
a = b = c = 1
i = j = t = w = z = 0
p, q, r = [1], [2], [3]
h = {0: 0}
G = []
n = 0
f = lambda: 0
class Swallow:
    def __enter__(self): return 5
    def __exit__(self, *error): return error[0] is ValueError
def helper(v):
    global n
    n = (n + v) % 7
    G.append(v)
def twice(v):
    helper(v)
    helper(n)
def push(x, v):
    y = x
    y.append(v)
def peek():
    return b
"""
INTS, LISTS = "abc", "pqr"
Pick = Callable[[list[Any]], Any]


class Author:
    """Writes programs of a main loop with a nested one; they end, and miss no name."""

    def __init__(self, pick: Pick) -> None:
        self.pick = pick
        self.lines: list[str] = []

    def write(self) -> str:
        for _ in range(2):
            self.statement(0, False)
        self.lines += ["_entry()", "for i in range(3):  # main"]
        self.block(1, True, 2)
        self.lines.append(
            "    " + self.pick(["for j in range(2):", "for j in list(p):"]) + "  # nested"
        )
        self.block(2, True, 3)
        self.lines.append("        _head()")
        if self.pick([False, True]):
            self.lines.append("    else:")
            self.block(2, False, 1)
        self.lines.append("    _boundary()  # boundary")
        self.block(1, True, 3)
        for _ in range(3):
            self.statement(0, False)
        return PRELUDE + "\n".join(self.lines) + "\n"

    def block(self, depth: int, jumps: bool, size: int) -> None:
        for _ in range(self.pick(list(range(1, size + 1)))):
            self.statement(depth, jumps)

    def number(self) -> str:
        x, p = self.pick(list(INTS)), self.pick(list(LISTS))
        found = ["1", x, x, f"({x} + 1) % 7", f"({x} + {self.pick(list(INTS))}) % 7", f"len({p})"]
        found += [
            f"sum({p}) % 7",
            f"({p}[-1] if {p} else {x})",
            "h.get(0, 2)",
            "f()",
            "peek()",
            "n",
        ]
        found += [
            f"sum([{x} for _ in {p}]) % 7",
            f"sum(t * {x} for t in {p}) % 7",
            f"(z := {x})",
            "z",
        ]
        found += ["i", "j", "t", "w", f"len([(z := _) for _ in {p}])", f"({x} and (z := 2)) or 0"]
        return self.pick(found)

    def statement(self, depth: int, jumps: bool) -> None:
        x, p = self.pick(list(INTS)), self.pick(list(LISTS))
        simple = [
            f"{x} = {self.number()}",
            f"{x} = {self.number()}",
            f"{x} += 1; {x} %= 7",
            f"{x}, t = t, {self.number()}",
            f"{p} = [{self.number()}]",
            f"{p} = {self.pick(list(LISTS))}",
            f"{p}.append({self.number()})",
            f"{p} += [{self.number()}]",
            f"if {p}: {p}[0] = {self.number()}",
            f"h[{self.number()}] = {self.number()}",
            f"helper({self.number()})",
            f"twice({self.number()})",
            f"push({p}, {self.number()})",
            f"f = lambda: {x}",
            f"_show({self.number()})",
            f"_show({self.number()})",
            f"with nullcontext(): {x} = {self.number()}",
            f"if {self.number()} > 2: raise ValueError",
        ]
        if depth > 2 or self.pick([True, True, False]):
            text = self.pick(
                simple if not jumps else [*simple, f"if {x} > 2: break", f"if {x} > 3: continue"]
            )
            if "raise" in text:
                self.lines.append("    " * depth + "with Swallow() as t:")
                self.statement(depth + 1, jumps)
                depth += 1
            self.lines.append("    " * depth + text)
        else:
            self.compound(depth, jumps)

    def compound(self, depth: int, jumps: bool) -> None:
        pad, x = "    " * depth, self.pick(list(INTS))
        kind = self.pick(["if", "for", "while", "forever", "try", "finally", "with", "match"])
        opening = {
            "if": [f"if {self.number()} > 2:"],
            "for": [f"for {self.pick(['t', x])} in [{self.number()}, 2][:{x} % 3]:"],
            "while": [f"w{depth} = 0", f"while w{depth} < 2:", f"    w{depth} += 1"],
            "forever": [
                f"w{depth} = 0",
                "while True:",
                f"    w{depth} += 1",
                f"    if w{depth} > {x} % 3: break",
            ],
            "try": ["try:", f"    if {self.number()} > 2: raise ValueError({x})"],
            "finally": ["try:", "    pass"],
            "with": ["with Swallow() as t:", f"    if {self.number()} > 3: raise ValueError"],
            "match": [f"match [{self.number()}, {x}]:", f"    case [0 | 1, t] if {self.number()}:"],
        }
        self.lines += [pad + line for line in opening[kind]]
        inside = kind in ("for", "while", "forever")
        self.block(depth + 1 + (kind == "match"), jumps or inside, 2)
        closing = {
            "if": ["else:"],
            "for": ["else:"],
            "while": ["else:"],
            "try": ["except ValueError as e:", "    t = e.args[0]"],
            "finally": ["finally:"],
            "match": ["    case [t, _]:"],
        }
        if kind in closing and (kind in ("try", "finally") or self.pick([True, False])):
            self.lines += [pad + line for line in closing[kind]]
            # A jump out of `finally` is a warning in newer Pythons.
            self.block(depth + 1 + (kind == "match"), jumps and kind != "finally", 2)
        if kind == "try" and self.pick([True, False]):
            self.lines.append(pad + "else:")
            self.block(depth + 1, jumps, 1)


CHOICES = st.binary(min_size=150, max_size=500)


def program_of(choices: bytes) -> str:
    """The program that these choices make; the first option where they end."""
    left = iter(choices)
    return Author(lambda options: options[next(left, 0) % len(options)]).write()


def line_of(program: str, mark: str) -> int:
    return next(n for n, line in enumerate(program.split("\n"), 1) if line.endswith(f"# {mark}"))


def run(program: str, **hooks: Callable[[dict[str, Any]], None]) -> list[Any]:
    """Execute; hooks get the program's variables where it calls them. Returns what it showed."""
    shown: list[Any] = []
    space: dict[str, Any] = {"_show": shown.append}
    for name in ("entry", "head", "boundary"):
        hook = hooks.get(name, lambda space: None)
        space[f"_{name}"] = functools.partial(hook, space)
    exec(compile(program, "program", "exec"), space)
    return shown


def variables(space: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in space.items() if not name.startswith("_")}


def check_changes(program: str) -> None:
    """What differs between the loop's entry and a boundary is in the changeset."""
    found = loop_changes(ast.parse(program), line_of(program, "main"))
    assert found
    expected = {change.path for change in found.changes}
    before: dict[str, Any] = {}

    def entry(space: dict[str, Any]) -> None:
        before.update(copy.deepcopy(variables(space)))

    def boundary(space: dict[str, Any]) -> None:
        now = variables(space)
        missing = object()
        names = before.keys() | now.keys()
        differ = {name for name in names if before.get(name, missing) != now.get(name, missing)}
        assert differ <= expected

    run(program, boundary=boundary, entry=entry)


@settings(max_examples=100, deadline=None)
@given(CHOICES)
def test_nothing_changes_unnoticed(choices: bytes):
    check_changes(program_of(choices))
