"""Declared objects by the names that a script has for them: flor.checkpoint.declared.

PYTEST_DONT_REWRITE: its asserts call `locals()`, and functions that do so are not looked at.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from flor.checkpoint.declared import Declared


def begun(**objects: Any) -> Declared:
    """What a main loop in the calling function begins with."""
    declared = Declared(objects)
    declared.begin(sys._getframe(1))
    return declared


def followed(declared: Declared) -> Any:
    """The object `x` after a look at the calling function."""
    declared.follow(sys._getframe(1))
    return declared.objects["x"]


def test_the_new_object_of_a_name_is_followed():
    value = np.zeros(2)
    declared = begun(x=value)
    value = value + 1

    assert followed(declared) is value


def test_its_own_name_counts_where_there_are_several():
    first = x = second = np.zeros(2)
    declared = begun(x=x)
    first, second = np.ones(1), np.ones(3)

    assert followed(declared) is x
    assert (len(first), len(second)) == (1, 3)


def test_a_number_is_followed_by_its_own_name_only():
    three, x = 3, 0.5
    declared = begun(x=x)
    three = 4
    assert followed(declared) == 0.5
    x = None
    assert followed(declared) is None
    other = begun(x=three)
    three = 5
    assert followed(other) == 4


def test_a_deleted_name_leaves_the_object():
    value = kept = [1]
    declared = begun(x=value)
    del value

    assert followed(declared) is kept
    assert not declared.replaced


def test_another_kind_of_object_is_told_and_not_followed():
    value: Any = [1]
    first = value
    declared = begun(x=first)
    first = value = {"a": 1}

    assert followed(declared) == [1]
    assert value is first
    assert declared.held() == {}
    assert declared.replaced == {"x": "means a dict now, and a list was given to checkpointing"}
    value = [2]
    assert followed(declared) is value
    assert not declared.replaced


def test_another_optimizer_takes_the_place_of_one():
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(1, 1)
    value: Any = torch.optim.Adam(net.parameters())
    declared = begun(x=value)
    value = torch.optim.SGD(net.parameters(), lr=0.1)
    assert followed(declared) is value
    value = net
    assert followed(declared) is not net
    assert "x" in declared.replaced


class Trainer:
    def __init__(self) -> None:
        self.weights = np.zeros(2)

    def fit(self) -> tuple[Any, Any]:
        declared = begun(x=self.weights)
        self.weights = self.weights + 1
        return followed(declared), self.weights


def test_an_attribute_of_self_is_followed():
    found, expected = Trainer().fit()

    assert found is expected


def test_the_function_of_a_nested_loop_knows_the_newest():
    value = np.zeros(1)
    declared = begun(x=value)

    def train(given: Any) -> Any:
        here = sys._getframe()
        declared.enter(here.f_back, here)
        given = given + 1
        declared.follow(here.f_back, here)
        assert declared.objects["x"] is given
        return given

    for _ in range(3):
        value = train(value)

    assert followed(declared) is value


def test_changes_are_seen_in_every_parameter():
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(3)))
    for parameter in net[0].parameters():
        parameter.requires_grad_(False)
    declared = begun(x=net)
    before = declared.changes()
    assert declared.changes() == before
    with torch.no_grad():
        net[2].bias += 1

    assert declared.changes() != before
    assert declared.all_seen
    assert not begun(x=net, history=[]).all_seen
    assert begun(x=[1]).changes() is None


def test_parameters_without_numbers_are_watched_once_they_have_some():
    torch = pytest.importorskip("torch")
    net = x = torch.nn.LazyLinear(2)
    declared = begun(x=x)
    assert declared.changes() is None
    net(torch.ones(1, 3))
    assert followed(declared) is x
    before = declared.changes()
    with torch.no_grad():
        net.weight += 1

    assert before is not None
    assert declared.changes() != before
