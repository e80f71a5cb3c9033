"""Which statements of two versions are the same ones."""

from collections import Counter
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flor.source.match import Matcher, _increasing, definition, dice
from flor.source.syntax import Source


def align(new: str, old: str) -> dict[int, int]:
    ours, theirs = Source(new), Source(old)
    matcher = Matcher(ours.bag, theirs.bag)
    return matcher.align(ours.module.statements, theirs.module.statements)


def similarity(new: str, old: str) -> float:
    ours, theirs = Source(new), Source(old)
    matcher = Matcher(ours.bag, theirs.bag)
    return matcher.similarity(ours.module.statements[0], theirs.module.statements[0])


# -- the heaviest increasing part ------------------------------------------------------------


@given(st.permutations(range(7)), st.lists(st.integers(1, 9), min_size=7, max_size=7))
def test_the_heaviest_increasing_part(order, weights):
    pairs = list(enumerate(order))
    found = _increasing(pairs, [float(w) for w in weights])
    assert all(a[1] < b[1] for a, b in pairwise(found))
    assert set(found) <= set(pairs)

    def weight(part):
        return sum(weights[i] for i, _ in part)

    every = (part for size in range(8) for part in combinations(pairs, size))
    best = max(weight(p) for p in every if [j for _, j in p] == sorted(j for _, j in p))
    assert weight(found) == best


# -- two lists -------------------------------------------------------------------------------

LINES = ["a = f(1)", "b = g(a, 2)", "c = h(a, b)", "step(a)", "step(b)", "for i in a:\n    step(i)"]
lists = st.lists(st.sampled_from(LINES), max_size=9).map(lambda lines: "\n".join(lines) + "\n")


@given(lists, lists)
def test_pairs_do_not_cross(new, old):
    found = align(new, old)
    pairs = sorted(found.items())
    assert all(a[1] < b[1] for a, b in pairwise(pairs))


@given(lists)
def test_a_list_is_itself(text):
    count = len(Source(text).module.statements)
    assert align(text, text) == {n: n for n in range(count)}


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        ("a = 1\nb = 2\nc = 3\n", "a = 1\nc = 3\n", {0: 0, 2: 1}),
        ("a = f(x)\nb = g(y)\n", "a = f(x, 1)\nb = g(y, 2)\n", {0: 0, 1: 1}),
        ("x = f(1)\ng(x)\n", "y = f(1)\ng(y)\n", {0: 0, 1: 1}),
        ("def f(): return 1\ndef g(): return 2\n", "def g(): return 1\n", {1: 0}),
        ("import a\nimport b\n", "import b\n", {1: 0}),
        ("f(1)\n", "", {}),
    ],
)
def test_aligned(new, old, expected):
    assert align(new, old) == expected


@pytest.mark.parametrize(
    ("new", "old", "least", "most"),
    [
        ("f( x )", "f(x)  # so", 1, 1),
        ("x = 'a'", 'x = "a"', 1, 1),
        ("loss = f(x)", "cost = f(x)", 0.6, 0.99),
        ("x = f(1)", "x = g(2)", 0.4, 0.9),
        ("x = f(1)", "if x: pass", 0, 0),
        ("def f(): a = 1", "def f(): b = 2", 1, 1),
        ("def f(): a = 1", "def g(): a = 1", 0, 0),
        ("flor.log('a', x)", "flor.log('b', x)", 0, 0),
        ("flor.log('a', x)", "flor.log('a', 2 * y)", 0.9, 1),
        ("for i in flor.loop('e', a): f()", "for j in flor.loop('e', b): g()", 0.9, 1),
        ("for i in flor.loop('e', a): f()", "for i in flor.loop('s', a): f()", 0, 0),
    ],
)
def test_similarity(new, old, least, most):
    assert least <= similarity(new, old) <= most


# -- definitions -----------------------------------------------------------------------------

BODY = "    y = x * scale\n    y = y + offset\n    return norm(y, 1)\n"


@pytest.mark.parametrize(
    ("new", "old", "name"),
    [
        ("def f(x):\n" + BODY, "def g(x): pass\ndef f(z):\n    return z\n", "f"),
        ("def f(x):\n" + BODY, "def g(x):\n" + BODY, "g"),
        ("def f(x):\n" + BODY, "if 1:\n  def f(x): pass\n", "f"),
        ("def f(x):\n" + BODY, "def g(x):\n    return open(x).read()\n", None),
        ("def f(x):\n" + BODY, "def g(x):\n" + BODY + "def h(x):\n" + BODY, None),
        ("def f(x):\n" + BODY + "def g(x): pass\n", "def g(x):\n" + BODY, None),
        ("class f:\n  x = 1\n", "def f(): pass\n", None),
    ],
)
def test_a_definition_by_its_name_or_by_its_content(new, old, name):
    ours, theirs = Source(new).module, Source(old).module
    found = definition(ours.statements[0], ours, theirs)
    assert (found.name if found is not None else None) == name


def test_a_property_and_its_setter():
    text = (
        "class C:\n  @property\n  def x(self): return self._x\n"
        "  @x.setter\n  def x(self, x): self._x = x\n"
    )
    ours, theirs = (Source(text).module.statements[0].branches[0] for _ in range(2))
    for n in range(2):
        assert definition(ours.statements[n], ours, theirs) is theirs.statements[n]


@given(st.lists(st.sampled_from("abc")), st.lists(st.sampled_from("abc")))
def test_dice(left, right):
    bags = Counter(left), Counter(right)
    assert 0 <= dice(*bags) <= 1
    assert dice(*bags) == dice(*bags[::-1])
    assert (dice(*bags) == 1) == (bags[0] == bags[1])
