"""What callables hold: flor.checkpoint.callables. Nothing of the user's runs."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import pytest

from flor.checkpoint.callables import Callables
from flor.checkpoint.frames import NOTHING, attributes, look_up


class Stop:
    shared = 3
    rows: list[int] = []  # noqa: RUF012 - that is what is tested

    def __init__(self) -> None:
        self.best = 0

    def __call__(self) -> None:
        raise AssertionError

    @property
    def loud(self) -> None:
        raise AssertionError


def make(limit: int) -> Callable[[int], None]:
    best, log = 0, [limit]

    def inner(value: int) -> None:
        def deeper() -> None:
            nonlocal best
            best = value + limit + len(log)

        deeper()

    return inner


def plain() -> None: ...


def held(value: Any) -> dict[str, Any]:
    """By name, where no source tells what functions change."""
    return {item.name: item.value for item in Callables(lambda code: None).held(value, "f")}


stop = Stop()
numbers = [1]
CASES: list[tuple[Any, dict[str, Any]]] = [
    (plain, {}),
    (len, {}),
    (int, {}),
    (random, {}),
    (random.random, {}),
    (lambda: 0, {}),
    ([plain, len, lambda: 0], {}),
    (stop, {"f": stop}),
    ([plain, stop], {"f[1]": stop}),
    ({"a": [stop]}, {"f['a'][0]": stop}),
    ([1, 2], {"f": [1, 2]}),
    (stop.__call__, {"f.__self__": stop}),
    (numbers.append, {"f.__self__": numbers}),
    (numbers.index, {}),
    ("text".join, {}),
    (functools.partial(plain, stop, key=numbers), {"f.args[0]": stop, "f.keywords['key']": [1]}),
    (functools.lru_cache(stop), {"f": stop}),
    (make(3), {"f.__closure__.best": 0, "f.__closure__.limit": 3, "f.__closure__.log": [3]}),
]


@pytest.mark.parametrize(("value", "expected"), CASES)
def test_what_a_callable_holds(value: Any, expected: dict[str, Any]) -> None:
    assert held(value) == expected


def test_callables_that_hold_themselves_end() -> None:
    circle: list[Any] = [stop]
    circle.append(circle)

    assert held(circle) == {"f[0]": stop}


def test_attributes_of_classes_are_looked_up_without_running_descriptors() -> None:
    class Below(Stop):
        own = 1

    names = {"below": Below(), "Below": Below}

    assert look_up("Below.own", names) == 1
    assert look_up("Below.shared", names) == 3
    assert look_up("below.shared", names) == 3
    assert look_up("below.__class__.own", names) == 1
    assert look_up("below.rows", names) is Stop.rows
    assert look_up("below.loud", names) is NOTHING
    assert look_up("below.none", names) is NOTHING
    assert attributes(Below).keys() >= {"own", "shared", "rows"}
