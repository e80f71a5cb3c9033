"""Which names are still read after a place."""

import ast
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings

from flor.source.liveness import live_after, live_at, live_at_head
from tests.test_changeset import CHOICES, line_of, program_of, run, variables

Ask = Callable[[ast.Module, int], frozenset[str]]


def ask(question: Ask, program: str) -> set[str]:
    """The answer for the line that is marked `# here`."""
    text = textwrap.dedent(program).strip("\n")
    (line,) = [n for n, line in enumerate(text.split("\n"), 1) if "# here" in line]
    return set(question(ast.parse(text), line))


def after(program: str) -> set[str]:
    return ask(live_after, program)


def head(program: str) -> set[str]:
    return ask(live_at_head, program)


def at(program: str) -> set[str]:
    return ask(live_at, program)


def then(statements: str) -> set[str]:
    """What is live after a loop that these statements follow."""
    return after("for i in range(3):  # here\n    pass\n" + textwrap.dedent(statements))


# -- a training loop ------------------------------------------------------------------------

TRAINING = """
net = Net()
best = 0
for epoch in range(3):  {}
    total = 0
    for x, y in loader:  {}
        pred = net(x)
        loss = crit(pred, y)
        loss.backward()
        total += loss.item()
    acc = test(net, total)
    if acc > best:
        best = acc
    print(loss)
print(best)
"""


def test_a_training_loop():
    """Of the inner loop's names only those live on that are read before they are bound again."""
    outside = {"net", "loader", "crit", "test"}
    assert after(TRAINING.format("", "# here")) == outside | {"total", "best", "loss"}
    assert head(TRAINING.format("", "# here")) == outside | {"total", "best", "loss"}
    assert after(TRAINING.format("# here", "")) == {"best"}
    # The inner loop may run zero times, then the last epoch's loss is printed.
    assert head(TRAINING.format("# here", "")) == outside | {"best", "loss"}


# -- straight code --------------------------------------------------------------------------

STRAIGHT = [
    ("print(a)", "a"),
    ("a = b", "b"),
    ("a = b\nprint(a)", "b"),
    ("a += b", "ab"),
    ("a, (b, *c) = d\nprint(a, b, c)", "d"),
    ("a.x = 1\nb[c] = 1", "abc"),
    ("a.x += 1\nb[c] += 1", "abc"),
    ("del a\nb = a", ""),
    ("del a.x, b[0]", "ab"),
    ("a: b = c\nprint(a)", "bc"),
    ("a: int\nprint(a)", "a"),
    ("import a.x, b as c\nprint(a, b, c)", "b"),
    ("from x import a as b\nprint(a, b)", "a"),
    ("def a(b=c): pass\nprint(a)", "c"),
    ("class a(b, metaclass=c): pass\nprint(a)", "bc"),
    ("@a\ndef b(): pass", "a"),
    ("assert a, b", "ab"),
    ("print(f'{a:{b}}')", "ab"),
    ("a if b else c", "abc"),
    ("print(len(a), max, int)", "a"),
    ("raise a from b\nprint(c)", "ab"),
]


@pytest.mark.parametrize(("statements", "live"), STRAIGHT, ids=[s[0] for s in STRAIGHT])
def test_straight_code(statements: str, live: str):
    assert then(statements) == set(live)


WALRUS = [
    ("print(a := b)\nprint(a)", "b"),
    ("if b and (a := c): pass\nprint(a)", "abc"),
    ("(a := b) if c else 0\nprint(a)", "abc"),
    ("b < c < (a := d)\nprint(a)", "abcd"),
    ("b < (a := c)\nprint(a)", "bc"),
    ("[a := x for x in b]\nprint(a)", "ab"),
    ("while (a := b()): print(a)", "b"),
]


@pytest.mark.parametrize(("statements", "live"), WALRUS, ids=[w[0] for w in WALRUS])
def test_a_walrus_binds_if_it_is_evaluated(statements: str, live: str):
    assert then(statements) == set(live)


# -- branches and loops ---------------------------------------------------------------------

BRANCHES = [
    ("if a: b = 1\nprint(b)", "ab"),
    ("if a: b = 1\nelse: b = 2\nprint(b)", "a"),
    ("if a: b = 1\nelif c: b = 2\nelse: b = 3\nprint(b)", "ac"),
    ("if a: b = 1\nelif c: b = 2\nprint(b)", "abc"),
    ("if a: b = 1\nelse: raise c\nprint(b)", "ac"),
    ("for a in b: c = 1\nprint(a, c)", "abc"),
    ("for a in b: print(a)", "b"),
    ("for a in b: pass\nelse: c = 1\nprint(c)", "b"),
    ("for a in b: break\nelse: c = 1\nprint(c)", "bc"),
    ("for a.x, b[0] in c: pass", "abc"),
    ("for a in b:\n    if c: continue\n    d = 1\nprint(d)", "bcd"),
    ("while a: b = 1\nprint(b)", "ab"),
    ("while True: b = 1\nprint(b)", ""),
    ("while True:\n    b = 1\n    if a: break\nprint(b)", "a"),
    ("while 1:\n    if a: break\n    b = 1\nprint(b)", "ab"),
    ("while a:\n    print(b)\n    b = 1", "ab"),
    ("match a:\n    case [b, *c]: print(b, c)\n    case {'k': d, **e}: print(d, e)\nprint(b)", "ab"),
    ("match a:\n    case b.c: d = 1\n    case _: d = 2\nprint(d)", "ab"),
    ("match a:\n    case 1 as b if b > c: print(b)\n    case d: print(b, d)", "abc"),
]  # fmt: skip


@pytest.mark.parametrize(("statements", "live"), BRANCHES, ids=[b[0] for b in BRANCHES])
def test_branches_and_loops(statements: str, live: str):
    assert then(statements) == set(live)


def test_the_next_iteration_of_the_loops_around():
    assert after("""
        for i in range(3):
            print(a)
            b = 1
            for j in range(3):
                print(b, c)
                for k in range(3): pass  # here
                c = 1
            a = 1
        """) == {"b"}


def test_jumps_to_the_loops_around():
    program = """
        while a:
            print(b)
            for j in c: pass  # here
            if d:
                b = 1
                {}
            b = 2
            break
        print(e)
        """
    assert after(program.format("continue")) == set("acde")
    assert after(program.format("b = e; continue")) == set("acde")
    assert after(program.format("break")) == set("de")
    assert after(program.replace("b = 1", "pass").format("continue")) == set("abcde")


def test_else_comes_after():
    program = """
        for i in range(3):  # here
            pass
        else:
            a = b
        print(a)
        """
    assert after(program) == {"a", "b"}  # a: after a break


# -- exceptions -----------------------------------------------------------------------------

EXCEPTIONS = [
    ("try: a = f()\nexcept E: print(a)", "aEf"),
    ("try:\n    a = 1\n    b = 1\nexcept E as e: print(e)\nprint(a, b)", "abE"),
    ("try: a = 1\nexcept E: raise\nprint(a)", "E"),
    ("try: a = 1\nexcept: a = 2\nprint(a)", ""),
    ("try: a = f()\nfinally: print(a)", "af"),
    ("try: a = f()\nfinally: b = 1\nprint(a, b)", "f"),
    ("try: a = f()\nexcept E: a = 1\nelse: b = 1\nprint(a, b)", "bEf"),
    ("try: pass\nexcept E as e: pass\nprint(e)", "eE"),
    ("try:\n    try: a = f()\n    finally: pass\nexcept E: print(a)", "aEf"),
    ("try:\n    try: a = f()\n    except F: pass\nexcept E: print(a)", "aEFf"),
    ("while True:\n    try:\n        a = 1\n        break\n    finally: b = 1\nprint(a, b)", ""),
    ("for x in f:\n    try:\n        if b: continue\n    finally: print(a)\n    a = 1", "abf"),
    ("with open(f) as g: a = g.read()\nprint(a)", "f"),
    ("with torch.no_grad(): a = f()\nprint(a)", ["torch", "f"]),
    ("with suppress(E): a = f()\nprint(a)", ["suppress", "E", "a", "f"]),
    ("with suppress(E):\n    a = f()\n    print(a)\nb = 1\nprint(b)", ["suppress", "E", "f"]),
    ("with a as b, b.c as d: print(d)", "a"),
    ("def open(): pass\nwith open(): a = 1\nprint(a)", "a"),
]


@pytest.mark.parametrize(("statements", "live"), EXCEPTIONS, ids=[e[0] for e in EXCEPTIONS])
def test_exceptions(statements: str, live: list[str] | str):
    assert then(statements) == set(live)


def test_a_handler_around_the_loop():
    assert after("""
        try:
            for i in range(3): pass  # here
            a = f()
        except E:
            print(a)
        """) == {"a", "E", "f"}


def test_return_passes_through_finally():
    assert after("""
        def main(b, c):
            try:
                for i in range(3): pass  # here
                return 1
            finally:
                print(b)
            print(c)
        """) == {"b"}


@pytest.mark.parametrize(
    ("statements", "live"),
    [
        ("try: a = f()\nexcept* E: b = a\nexcept* F: print(b)", "abEFf"),  # Python 3.11
        ("type a = b\nprint(a)\nb = 1", "b"),  # Python 3.12
        ("def f[T: a](x: T) -> b: return T\na = b = 1", "abT"),
        ("class A[T](a): x: T\na = T = 1", "aT"),
        ("print(t'{a:{b}}')", "ab"),  # Python 3.14
    ],
)
def test_newer_syntax(statements: str, live: str):
    try:
        ast.parse(statements)
    except SyntaxError:
        pytest.skip("not in this Python")
    assert then(statements) == set(live)


# -- readers elsewhere ----------------------------------------------------------------------

ALWAYS = [
    ("def f(): return a\na = 1", "a"),
    ("def f(a): return a + b\nb = 1", "b"),
    ("f = lambda a: a + b\nb = 1", "b"),
    ("class C: x = a\na = 1", "a"),
    ("class C:\n    a = 1\n    def f(self): return a\na = 1", "a"),
    ("g = (x + a for x in b)\na = b = 1", "ab"),
    ("g = sum(x + a for x in b)\na = b = 1", "ab"),
    ("a = 1\ng = sum(x + a for x in b)", "b"),
    ("a = 1\ng = (x + a for x in b)", "ab"),
    ("a = 1\ng = [x + a for x in b if x]", "b"),
    ("a = 1\ng = {x: y for x in b for y in x + a}", "b"),
    ("a = 1\ng = [lambda: x + a for x in b]", "ab"),
    ("def f():\n    global a\n    a += 1\na = 1", "a"),
    ("def f():\n    a = 1\n    def g():\n        global a\n        print(a)\na = 1", "a"),
    ("def f(x: a) -> b: pass\na = b = 1", "ab"),
    ("def f():\n    def g(): return a\n    a = 1", ""),
    ("def f():\n    a[0] = b.c = 1\na = b = 1", "ab"),
    ("def f():\n    a = 1\na = 1", ""),
]


@pytest.mark.parametrize(("statements", "live"), ALWAYS, ids=[a[0] for a in ALWAYS])
def test_names_with_readers_at_any_time(statements: str, live: str):
    assert then(statements) == set(live)


def test_names_of_a_function():
    """Its own names end with it; those of others have their readers there."""
    assert after("""
        limit = 1
        def outer():
            seen = free = 1
            def main(a, b):
                global best
                nonlocal free
                history.append(a)
                def show(): print(c)
                for i in range(3):  # here
                    best = free = a
                    seen.append(limit)
                b = c = a
            return seen
        """) == {"a", "best", "free", "seen", "history", "limit", "c"}


@pytest.mark.parametrize("use", ["exec(s)", "eval('a')", "print(locals())", "vars()", "globals"])
def test_code_that_may_read_everything(use: str):
    assert then(f"{use}\na = 1") >= {"a", "i"}
    assert "a" in after(f"def f(): {use}\nfor i in x: a = 1  # here")


@pytest.mark.parametrize("use", ["net.eval()", "vars(args)", "def eval(net): pass\neval(1)"])
def test_code_that_does_not(use: str):
    assert not {"a", "i"} & then(f"{use}\na = 1")


def test_class_bodies_keep_what_they_bind():
    assert after("""
        class C:
            for i in range(3): a = 1  # here
            b = c
        """) >= {"i", "a", "c"}


# -- before a statement ---------------------------------------------------------------------


def test_before_a_simple_statement():
    assert at("""
        a = f(
            b,  # here
            c)
        print(a, d)
        """) == {"f", "b", "c", "d"}


def test_before_headers():
    assert at("if a(b):  # here\n    c = d\nprint(c)") == set("abcd")
    assert at("while a(b):  # here\n    c = d\nprint(c)") == set("abcd")
    assert at("with a(b) as e:  # here\n    print(e)") == set("ab")
    assert at("for e in a(b):  # here\n    print(e)\n    c = d\nprint(c)") == set("abcd")
    assert at("try:\n    x()\nexcept a(b):  # here\n    print(c)") == set("abc")
    assert at("match a(b):  # here\n    case 1: print(c)\n    case _: c = 1") == set("abc")
    assert at("match x:\n    case d if a(d):  # here\n        pass\n    case _: print(c)") == {
        "a",
        "c",
    }


def test_a_call_of_the_outer_frame_is_made_again():
    """`train(state)` is under way in `main`: what it gets must be there for the second time."""
    program = """
        def main(config):
            state = make(config)
            for epoch in range(3):
                report = train(state, lr)  # here
                lr = report.lr
            return report
        """
    assert at(program) == {"make", "train", "state", "lr"}  # functions of the file always are


def test_statements_that_share_a_line():
    assert at("a = b; c = d(a)  # here") == {"b", "d", "a"}
    assert at("def f(x): return g(x)  # here\nprint(y)") == {"g", "x"}


def test_where_nothing_is_every_name_is_answered():
    program = ast.parse("a = 1\n\nfor i in x: b = 1\n")
    assert live_after(program, 1) == live_at(program, 2) == live_at(program, 9) == set("abix")


# -- against brute force --------------------------------------------------------------------


class Poison:
    """Every use raises."""


def _refuse(self: object, *args: object) -> object:
    raise AssertionError("a dead name was used")


for _name in [
    *["add", "radd", "iadd", "mod", "rmod", "imod", "mul", "rmul", "len", "iter", "getitem"],
    *["setitem", "contains", "call", "bool", "eq", "ne", "lt", "gt", "hash", "enter", "getattr"],
]:
    setattr(Poison, f"__{_name}__", _refuse)


def check_liveness(program: str, question: Ask, hook: str, mark: str) -> int:
    """With its dead names gone at a boundary, the program shows what it shows with them.

    Returns how many were gone.
    """
    live = question(ast.parse(program), line_of(program, mark))
    poison, gone = Poison(), set()

    def remove(space: dict[str, Any]) -> None:
        if not gone:
            gone.update(variables(space).keys() - live)
            space.update(dict.fromkeys(gone, poison))

    assert run(program, **{hook: remove}) == run(program)
    return len(gone)


@pytest.mark.parametrize(
    ("question", "hook", "mark"),
    [
        (live_after, "boundary", "nested"),
        (live_at_head, "head", "nested"),
        (live_at, "boundary", "boundary"),
    ],
)
@settings(max_examples=100, deadline=None)
@given(CHOICES)
def test_no_dead_name_is_used(question: Ask, hook: str, mark: str, choices: bytes):
    check_liveness(program_of(choices), question, hook, mark)
