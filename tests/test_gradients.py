"""Whether gradients outlive an iteration, where functions are in between."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Collection

import pytest

from flor.source.changeset import LoopChanges, loop_changes
from flor.source.gradients import Receiver, Use, gradients_around


def verdict(found: LoopChanges | None, users: Collection[str] = ("opt", "scaler")) -> str:
    """`cleared`: something is, before each use of an iteration; `unknown`: nothing computes any."""
    assert found is not None
    uses = [
        use for use in found.gradients if use.kind != "step" or (use.on and use.on.path in users)
    ]
    if not any(use.kind == "backward" for use in uses):
        return "unknown"
    return "cleared" if all(use.cleared for use in uses) else "kept"


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
    "a function that a step calls first": (STEP, "opt.step(step)", "cleared"),
    "a function that is only passed on": (STEP, "run(step)", "unknown"),
    "a lambda": ("clear = lambda: opt.zero_grad()", "clear(); loss.backward()", "kept"),
}


@pytest.mark.parametrize("case", CASES)
def test_functions_of_the_file_are_followed(case: str) -> None:
    before, statements, grads = CASES[case]
    program = f"{before}\nfor i in range(3):  # here\n" + textwrap.indent(statements, "    ")
    line = program.split("\n").index("for i in range(3):  # here") + 1

    found = loop_changes(ast.parse(program), line)

    assert verdict(found) == grads


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

    assert verdict(found) == "cleared"


def uses(statements: str, before: str = "") -> tuple[Use, ...]:
    program = f"{before}\nfor i in range(3):  # here\n" + textwrap.indent(statements, "    ")
    line = program.split("\n").index("for i in range(3):  # here") + 1
    found = loop_changes(ast.parse(program), line)
    assert found is not None
    return found.gradients


def named(*paths: str) -> frozenset[Receiver]:
    return frozenset(Receiver(path, False) for path in paths)


def test_each_optimizer_clears_its_own() -> None:
    assert uses("oh.zero_grad()\nloss.backward()\noh.step()\nif n % 4 == 0: ob.step()") == (
        Use("backward", named("oh")),
        Use("step", named("oh"), *named("oh")),
        Use("step", named("oh"), *named("ob")),
    )


def test_what_reads_gradients() -> None:
    found = uses("n = clip_grad_norm_(p)\nscaler.unscale_(opt)\nx = p.grad\nautograd.grad(y, x)")
    assert found == (Use("read", frozenset()),)
    assert uses("p.grad = None\np.gradient") == ()
    assert uses("scaler.step(opt)") == (
        Use("step", frozenset(), Receiver("scaler", False), Receiver("opt", False)),
    )


def test_parameters_of_functions_are_what_they_are_given() -> None:
    before = "def f(o, x, *, s):\n    o.zero_grad()\n    x.backward()\n    s.step()"
    assert uses("f(t.opt, loss, s=t.sched)", before) == (
        Use("backward", named("t.opt")),
        Use("step", named("t.opt"), *named("t.sched")),
    )
    assert {use.cleared for use in uses("f(make(), loss, s=t)", before)} == {frozenset()}


AROUND = """
def train():
    for step in steps:  # inner
        opt.zero_grad()
        loss.backward()
        opt.step()
def main():
    for epoch in range(3):  # here
        opt.zero_grad()
        {call}
        {after}
"""


@pytest.mark.parametrize("call", ["train()", "for x in y: train()", "total = train()"])
@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("validate(net)", ()),
        ("opt.step()", (Use("step", frozenset(), Receiver("opt", True)),)),
        ("norm = net.weight.grad.norm()", (Use("read", frozenset()),)),
    ],
)
def test_what_comes_around_the_boundary(call: str, after: str, expected: tuple[Use, ...]) -> None:
    """What was cleared before the boundary does not count behind it."""
    program = AROUND.format(call=call, after=after)
    lines = program.split("\n")
    line, inner = (next(n for n, t in enumerate(lines, 1) if m in t) for m in ("# here", "# inner"))

    assert gradients_around(ast.parse(program), line, inner) == expected
