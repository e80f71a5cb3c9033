"""Which names a statement reads, binds and changes."""

import ast

import pytest

from flor.source.uses import uses

USES = [
    ("a = b", "b", "a", ""),
    ("a += b", "a b", "a", ""),
    ("a.b = c", "a c", "", "a"),
    ("a[b].c += d", "a b d", "", "a"),
    ("a.b(c)", "a c", "", "a"),
    ("x = a.b(c)", "a c", "x", ""),
    ("self.a = b", "self b", ".a", ".a"),
    ("x = f(self.a.b)", "f self .a", "x", ""),
    ("self.a.b(c)", "self .a c", "", ".a"),
    ("import a.b, c as d", "", "a d", ""),
    ("for a, b in c: pass", "c", "a b", ""),
    ("with a as b: pass", "a", "b", ""),
    ("try: pass\nexcept A as b: pass", "A", "b", ""),
    ("match a:\n case [b, *c]: pass\n case {1: d, **e}: pass", "a", "b c d e", ""),
    ("(a := b)", "b", "a", ""),
    ("def f(): return a", "a", "f", ""),
    ("del a.b, c", "a", "c", "a"),
]


@pytest.mark.parametrize(("text", "reads", "binds", "changes"), USES)
def test_uses(text, reads, binds, changes):
    found = uses(ast.parse(text).body[0])
    assert found.reads == set(reads.split())
    assert found.binds == set(binds.split())
    assert found.changes == set(changes.split())


@pytest.mark.parametrize(
    ("one", "other", "touches"),
    [
        ("a = 1", "print(a)", True),
        ("print(a)", "a = 1", True),
        ("x = f(a)", "y = f(b)", False),
        ("a.step()", "print(a)", True),
        ("a = 1", "b = 1", False),
        ("self.a = 1", "print(self.b)", False),
        ("self.a = 1", "print(self.a)", True),
    ],
)
def test_whether_the_order_of_two_statements_may_matter(one, other, touches):
    one, other = (uses(ast.parse(text).body[0]) for text in (one, other))
    assert one.touches(other) is touches
