"""Whether a name has a value at a place."""

import textwrap

import pytest

from flor.source.bindings import Bindings, reads
from flor.source.syntax import Source, Statement


def statement_with(text: str, words: str) -> tuple[Source, Statement]:
    """The innermost statement that holds the words."""
    source = Source(textwrap.dedent(text).strip("\n") + "\n")
    found = [s for outer in source.module.statements for s in outer.walk() if words in s.text]
    return source, found[-1]


def is_bound(text: str, name: str = "x") -> bool:
    """Whether a name has a value at the statement `here`."""
    source, here = statement_with(text, "here")
    return Bindings(source).is_bound(name, here.branch, here.index)


BOUND = [
    "x = 1\nhere",
    "x += 1\nhere",
    "x: int = 1\nhere",
    "(a, [*x]), b = c\nhere",
    "import x\nhere",
    "import x.y\nhere",
    "import y as x\nhere",
    "from x import *\nhere",
    "from y import a as x\nhere",
    "def x(): pass\nhere",
    "class x: pass\nhere",
    "if (x := 1): here",
    "print(x := 1)\nhere",
    "y = [(x := i) for i in a]\nhere",
    "while (x := f()): here",
    "for x in y: here",
    "for x in y: pass\nhere",
    "for x in y: pass\nelse: here",
    "async def f():\n async for x in y: here",
    "async def f():\n async with y as x: here",
    "with y as (a, x): here",
    "with y as x: pass\nhere",
    "try: f()\nexcept E as x: here",
    "try: x = 1\nexcept E: here",
    "try: x = 1\nfinally: here",
    "try: x = 1\nexcept E: pass\nhere",
    "try: pass\nexcept E: x = 1\nfinally: here",
    "if a: x = 1\nhere",
    "if a: pass\nelif (x := b): pass\nelse: here",
    "for a in b:\n here\n x = 1",
    "while a:\n here\n x = 1",
    "for a in b:\n if a: here\n x = 1",
    "for a in b: x = 1\nelse: here",
    "match a:\n case x: here",
    "match a:\n case [x, 1]: here",
    "match a:\n case [1, *x]: here",
    "match a:\n case {'k': 1, **x}: here",
    "match a:\n case C(y=x): here",
    "match a:\n case C() as x: here",
    "def f(x): here",
    "def f(*x): here",
    "def f(**x): here",
    "def f(*, x=1): here",
    "def f(x, /): here",
    "def f():\n here\nx = 1",
    "x = 1\ndef f(): here",
    "def f():\n def g(): here\n x = 1",
    "def f(x):\n def g(): here",
    "def f():\n global x\n here",
    "def f():\n global x\n x = 1\ndef g(): here",
    "class C:\n x = 1\n here",
    "x = 1\nclass C: here",
    "del x\nx = 1\nhere",
    "x = 1\nif a: del x\nhere",
    "try: x = 1\nexcept* E: here",
    "def f():\n x = 0\n def g():\n  nonlocal x\n  here",
]
UNBOUND = [
    "here",
    "here\nx = 1",
    "y = x.z\nhere",
    "x.y = 1\nhere",
    "x[0] = 1\nhere",
    "x: int\nhere",
    "import y.x\nhere",
    "import x as y\nhere",
    "[x for x in y]\nhere",
    "{x: x for x in y}\nhere",
    "f = lambda x: x\nhere",
    "f = lambda: (x := 1)\nhere",
    "def f(): x = 1\nhere",
    "def f(x): pass\nhere",
    "def f():\n here\n x = 1",
    "x = 1\ndef f():\n here\n x = 2",
    "def f():\n x = 1\ndef g(): here",
    "class C: x = 1\nhere",
    "class C:\n x = 1\n def f(self): here",
    "class C:\n def x(self): here",
    "try: f()\nexcept E as x: pass\nhere",
    "try: f()\nexcept E as x: pass\nexcept F: here",
    "try: f()\nexcept E as x: pass\nfinally: here",
    "try: here\nexcept E as x: pass",
    "try: here\nfinally: x = 1",
    "x = 1\ndel x\nhere",
    "x = y = 1\ndel y, x\nhere",
    "x = y = 1\ndel (y, [x])\nhere",
    "if a: x = 1\nelse: here",
    "match a:\n case [x]: pass\n case [y]: here",
    "match a:\n case x.y: here",
    "with x: here",
    "for y in x: here",
    "match x:\n case C(x=1): here",
]


@pytest.mark.parametrize("text", BOUND)
def test_bound(text):
    assert is_bound(text)


@pytest.mark.parametrize("text", UNBOUND)
def test_unbound(text):
    assert not is_bound(text)


@pytest.mark.parametrize(
    "name", ["print", "len", "__file__", "__name__", "ValueError", "True", "display"]
)
def test_built_in(name):
    assert is_bound("here", name)


def test_the_class_itself():
    assert is_bound("class C:\n def f(self): here", "__class__")
    assert not is_bound("def f(self): here", "__class__")


READS = [
    ("print(a, b.c, d[e])", "abde"),
    ("a = b", "b"),
    ("a += b", "ab"),
    ("a.x = b", "ab"),
    ("a[b] = c", "abc"),
    ("[a for a in b if c]", "bc"),
    ("{a: b for a, b in c}", "c"),
    ("lambda a: a + b", "b"),
    ("f(lambda a=b: a)", "fb"),
    ("(a := b) + a", "b"),
    ("a + (a := b)", "ab"),
    ("if (a := b): c(a)", "bc"),
    ("for a in b: f(a)", "bf"),
    ("for a in b:\n    c = a\n    f(c)", "bf"),
    ("with a as b: f(b)", "af"),
    ("try: f()\nexcept g as e: h(e)", "fgh"),
    ("def f(a, b=c): return a + b + d", "cd"),
    ("@d\ndef f(): pass", "d"),
    ("class A(b): c = d", "bd"),
    ("import a", ""),
    ("del a", "a"),
    ("f'{a:{b}} c'", "ab"),
    ("a: b = c", "bc"),
    ("assert a, b", "ab"),
    ("match a:\n    case [b, *c]: f(b, c)", "af"),
    ("match a:\n    case b.C(d=1): f()", "abf"),
    ("if a: b(c)", "abc"),
]


@pytest.mark.parametrize(("text", "names"), READS)
def test_what_a_statement_takes_from_outside(text, names):
    found = reads(Source(text + "\n").module.statements[0])
    assert found == set(names)
