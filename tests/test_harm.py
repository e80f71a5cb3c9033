"""Old code stays what it is."""

import pytest

import flor
from flor.errors import NoPlace
from flor.source.propagate import logging, parsed, propagate, propagate_all

CASES = {
    "what the training reads again": (
        "for x, y in d:\n    p = m(x)\n    p = p.argmax(1)\n    print(p)\n    step()\n",
        "for x, y in d:\n    p = m(x)\n    step()\n",
        "for x, y in d:\n    p = m(x)\n    loss = crit(p, y)\n    loss.backward()\n    step()\n",
        4,
        "assign 'p', which the older version still reads",
    ),
    "a sum that goes on": (
        "def f(m, d):\n    for x in d:\n        p = m(x)\n        acc = p.mean()\n"
        "        print(acc)\n        step(p)\n",
        "def f(m, d):\n    for x in d:\n        p = m(x)\n        step(p)\n",
        "def f(m, d):\n    acc = 0\n    for x in d:\n        p = m(x)\n        step(p)\n"
        "        acc += p\n    return acc\n",
        5,
        "assign 'acc', which the older version still reads",
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_what_comes_along_takes_no_value_away(what):
    new, base, old, line, why = CASES[what]
    with pytest.raises(NoPlace, match=why):
        propagate(parsed(new, "new"), parsed(old, "old"), line, parsed(base, "base"))


def test_a_value_that_is_read_no_more_may_change():
    new = "for x in d:\n    p = m(x)\n    crit(p)\n    p = p.argmax(1)\n    print(p)\n    step()\n"
    base = "for x in d:\n    p = m(x)\n    crit(p)\n    step()\n"
    found = propagate(parsed(new, "new"), parsed(base, "old"), 5, parsed(base, "base"))
    assert found.text == new


def test_a_variable_of_the_module_stays_one():
    new = "total = 0\ndef f(a):\n    global total\n    go(a)\n    total += 1\n    stop()\n"
    old = "total = 0\ndef f(a):\n    go(a)\n    print(total)\n    stop()\n"
    with pytest.raises(NoPlace, match="'total' is declared"):
        flor.propagate(new, old, 5)
    new = "total = 0\ndef f(a):\n    go(a)\n    total = a\n    stop()\n"
    old = "total = 0\ndef f(a):\n    show(total)\n    go(a)\n    stop()\n"
    with pytest.raises(NoPlace, match="'total' is not the function's own"):
        flor.propagate(new, old, 4)


def test_a_comment_hides_nothing():
    new = "def f(d):\n    loss = step(d)\n    print(loss)  # each\n    return loss\n"
    old = "def f(d):\n    loss = step(d); return loss\n"
    assert flor.propagate(new, old, 3) == (
        "def f(d):\n    loss = step(d); print(loss); return loss\n"
    )


def test_several_records_of_a_line():
    new = "def f(a):\n    x = a; flor.log('acc', x); flor.log('loss', x + 1)\n    go(x)\n"
    old = "def f(b):\n    x = b\n    go(x)\n"
    source = parsed("import flor\n" + new, "new")
    found = propagate_all(source, parsed("import flor\n" + old, "old"), logging(source, "loss"))
    assert "    x = b\n    flor.log('loss', x + 1)\n    go(x)\n" in found.text


def test_what_is_there_under_other_names_is_there():
    new = "def f(a):\n    z = a\n    print('n', z)\n    return z\n"
    old = "def f(a):\n    y = a\n    print('n', y)\n    return y\n"
    found = propagate(parsed(new, "new"), parsed(old, "old"), 3)
    assert (found.text, found.probe.already) == (old, True)


def test_the_setter_of_a_property_is_not_its_getter():
    getter = "class A:\n    @property\n    def lr(self):\n        v = self._lr\n        return v\n"
    setter = "    @lr.setter\n    def lr(self, v):\n        self._lr = v\n        print(self._lr)\n"
    with pytest.raises(NoPlace, match="lacks the function lr"):
        flor.propagate(getter + setter, getter, 9)


def test_a_condition_that_is_turned_round():
    new = "if d.ok:\n    x = go(d)\n    print(x)\nelse:\n    x = stop(d)\n"
    old = "if not d.ok:\n    x = stop(d)\nelse:\n    x = go(d)\n"
    assert flor.propagate(new, old, 3) == old + "    print(x)\n"


def test_a_block_of_its_own_needs_its_condition():
    new = "for i in d:\n    step(i)\n    if i % 10 == 0:\n        print(i)\n"
    old = "for i in d:\n    step(i)\n    if i % 100 == 0:\n        save()\n"
    with pytest.raises(NoPlace, match="lacks the block `if i % 10 == 0:`"):
        flor.propagate(new, old, 4)


def test_a_helper_named_like_a_function_of_python():
    new = "from torch import sum\ny = go()\nprint(sum(y))\nstop(y)\n"
    old = "y = go()\nstop(y)\n"
    assert flor.propagate(new, old, 3) == new


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        (  # the counter is read behind what counts
            "for x in d:\n    n += 1\n    print(n)\n    model(x)\n",
            "for x in d:\n    model(x)\n    n += 1\n",
            "for x in d:\n    model(x)\n    n += 1\n    print(n)\n",
        ),
        (  # the sum is read before it is zero again
            "for e in es:\n    tot = 0\n    for x in d:\n        tot += x\n    print(tot)\n",
            "for e in es:\n    for x in d:\n        tot += x\n    tot = 0\n",
            "for e in es:\n    for x in d:\n        tot += x\n    print(tot)\n    tot = 0\n",
        ),
    ],
)
def test_a_value_counts_more_than_neighbours(new, old, expected):
    head = "n = tot = 0\n"
    line = next(n for n, text in enumerate((head + new).split("\n"), 1) if "print" in text)
    assert flor.propagate(head + new, head + old, line) == head + expected
