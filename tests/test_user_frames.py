"""How a loop was left, seen from its iterator: flor.checkpoint.frames."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from flor.checkpoint.frames import left_on_purpose, may_look, running

seen: list[object] = []


def loop() -> Iterator[int]:
    """Notes how it was left by the function that began it."""
    caller: Any = sys._getframe(1)
    while not caller.f_code.co_name.startswith("by_"):
        caller = caller.f_back
    here = running(caller)
    del caller
    done = False
    try:
        yield from range(3)
        done = True
    finally:
        frame = here.frame(sys._getframe().f_back)
        seen.append("done" if done else frame is not None and left_on_purpose(frame))


def bar(items: Iterable[int]) -> Iterator[int]:
    with contextlib.nullcontext():
        for _, item in enumerate(items):
            yield item


def fail(number: int) -> None:
    if number:
        raise ValueError(number)


def by_its_end() -> None:
    for _ in loop():
        pass


def by_break() -> None:
    for number in loop():
        with contextlib.nullcontext():
            try:
                if number:
                    break
            finally:
                len("")


def by_return() -> int:
    for number in loop():
        for _ in range(2):
            return number + 1
    return 0


def by_break_in_a_handler() -> None:
    for number in loop():
        try:
            fail(number)
        except ValueError:
            break


def by_break_behind_generators() -> None:
    for number in (number for number in bar(bar(loop()))):
        if number:
            break


def by_break_behind_zip() -> None:
    for number, _ in zip(bar(loop()), range(9), strict=False):
        if number:
            break


def by_error() -> None:
    for number in loop():
        fail(number)


def by_error_that_is_caught() -> None:
    with contextlib.suppress(ValueError):
        for number in loop():
            try:
                fail(number)
            finally:
                len("")


def by_error_behind_generators() -> None:
    try:
        for number in bar(bar(loop())):
            fail(number)
    except ValueError:
        pass


def by_exit() -> None:
    for _ in loop():
        sys.exit(3)


CASES = [
    *((by_its_end, "done"), (by_break, True), (by_return, True), (by_break_in_a_handler, True)),
    *((by_break_behind_generators, True), (by_break_behind_zip, True), (by_error, False)),
    *((by_error_that_is_caught, False), (by_error_behind_generators, False), (by_exit, False)),
]


@pytest.mark.parametrize(("leave", "expected"), CASES)
def test_a_break_is_told_from_an_error(leave: Callable[[], object], expected: object):
    for _ in range(30):  # Python's instructions adapt to what they see
        seen.clear()
        with contextlib.suppress(ValueError, SystemExit):
            leave()
        assert seen == [expected]


# --- whether a function looks at its own locals ---------------------------------------------------


class Net:
    """Its methods are called as the builtins are."""

    def eval(self) -> None: ...

    def exec(self) -> None: ...

    def dir(self) -> None: ...


def evaluates(net: Net) -> None:
    net.eval()
    net.exec()
    net.dir()


def looks_at_others(net: Net) -> object:
    return vars(net), dir(net), len(vars(net))


def looks_at_locals() -> object:
    return locals()


def looks_at_vars() -> object:
    return vars()


def looks_at_names() -> object:
    return sorted(dir())


def looks_by_eval() -> object:
    return eval("1")


def looks_at_its_frame() -> object:
    return sys._getframe().f_locals


@pytest.mark.parametrize("function", [evaluates, looks_at_others])
def test_functions_that_do_not_look_at_their_own_locals(function: Any) -> None:
    assert may_look(function.__code__)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="each look gives a dictionary of its own")
@pytest.mark.parametrize(
    "function",
    [looks_at_locals, looks_at_vars, looks_at_names, looks_by_eval, looks_at_its_frame],
)
def test_functions_that_look_at_their_own_locals(function: Any) -> None:
    assert not may_look(function.__code__)
