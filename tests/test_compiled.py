"""Whether code is that of a source: flor.source.compiled."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from flor.source.compiled import code_matches

SOURCE = '''
"""A script."""
x = (1, 2.5, "a", frozenset({1}))

def train(n, k=3):
    for i in range(n):
        yield lambda: i in {1, 2}

class Net:
    def forward(self, x):
        return x + 1
'''


def compiled(source: str) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "m"}
    exec(compile(source, "elsewhere.py", "exec"), space)
    return space


@pytest.mark.parametrize(
    ("old", "new", "functions", "module"),
    [
        ("", "", True, True),
        ("A script", "The script", True, False),
        ("range(n)", "range(n + 1)", False, False),
        ("range(n)", "\\\n      range(n)", False, False),
        ("{1, 2}", "{1, 3}", False, False),
        ("{1, 2}", "{True, 2}", False, False),
        ("\ndef train", "\n\ndef train", False, False),
        ("k=3", "k=4", True, False),
        ("yield ", "yield  ", True, True),
        ("def train", "def train(", False, False),
    ],
)
def test_whether_code_is_of_this_source(old: str, new: str, functions: bool, module: bool):
    space = compiled(SOURCE)
    list(space["train"](3))  # the interpreter specialises code that runs
    edited = SOURCE.replace(old, new, 1) if old else SOURCE
    assert code_matches(edited, "train.py", space["train"].__code__) is functions
    assert code_matches(edited, "train.py", compile(SOURCE, "x.py", "exec")) is module


def test_methods_and_foreign_code():
    space = compiled(SOURCE)
    assert code_matches(SOURCE, "x", space["Net"].forward.__code__)
    assert not code_matches(SOURCE, "x", textwrap.dedent.__code__)
