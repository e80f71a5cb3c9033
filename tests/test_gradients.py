"""Whether gradients outlive an iteration, where functions are in between."""

from __future__ import annotations

import ast
import textwrap

import pytest

from flor.source.changeset import loop_changes

STEP = """
def step(x):
    opt.zero_grad()
    net(x).backward()
    opt.step()
"""
CASES = {
    "a function clears and computes": (STEP, "step(x)", "cleared"),
    "a function only computes": ("def step(x): net(x).backward()", "step(x)", "kept"),
    "cleared before the function": (
        "def step(x): net(x).backward()",
        "opt.zero_grad(); step(x)",
        "cleared",
    ),
    "a function clears for the others": (
        "def clear(): opt.zero_grad()",
        "clear(); loss.backward()",
        "cleared",
    ),
    "a function that may not clear": (
        "def clear():\n    if c: return\n    opt.zero_grad()",
        "clear(); loss.backward()",
        "kept",
    ),
    "a function that is not always called": (
        "def clear(): opt.zero_grad()",
        "c and clear()\nloss.backward()",
        "kept",
    ),
    "one of two functions of a name": (
        "def clear(): opt.zero_grad()\ndef clear(): pass",
        "clear(); loss.backward()",
        "kept",
    ),
    "a function that is replaced": (
        "def clear(): opt.zero_grad()\nclear = other",
        "clear(); loss.backward()",
        "kept",
    ),
    "a result that is kept": (
        STEP.replace("opt.step()", "return opt.step()"),
        "loss = step(x)",
        "cleared",
    ),
    "a result that is logged": (
        STEP + "    return 1\n",
        "log(step(x))",
        "cleared",
    ),
    "functions that call each other": (
        "def a(n):\n    if n: b(n - 1)\n    loss.backward()\ndef b(n): a(n)",
        "a(3)",
        "kept",
    ),
    "a method of some object": (
        "class T:\n    def step(self, x):\n        self.opt.zero_grad()\n        self.net(x).backward()",
        "trainer.step(x)",
        "cleared",
    ),
    "a method that may be another's clears nothing": (
        "class T:\n    def clear(self): self.opt.zero_grad()",
        "trainer.clear(); loss.backward()",
        "kept",
    ),
    "a function that is only passed on": (STEP, "opt.step(step)", "unknown"),
    "a lambda": ("clear = lambda: opt.zero_grad()", "clear(); loss.backward()", "kept"),
}


@pytest.mark.parametrize("case", CASES)
def test_functions_of_the_file_are_followed(case: str) -> None:
    before, statements, grads = CASES[case]
    program = f"{before}\nfor i in range(3):  # here\n" + textwrap.indent(statements, "    ")
    line = program.split("\n").index("for i in range(3):  # here") + 1

    found = loop_changes(ast.parse(program), line)

    assert found is not None
    assert found.grads == grads


def test_a_method_of_self_is_followed() -> None:
    program = textwrap.dedent("""
        class Trainer:
            def clear(self):
                self.opt.zero_grad()

            def fit(self):
                for x in self.loader:
                    self.clear()
                    self.net(x).backward()
    """)

    found = loop_changes(ast.parse(program), 7)

    assert found is not None
    assert found.grads == "cleared"
