"""What a signal handler raised is told from what failed."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flor.signals import is_from_handler, quiet


class Limit(Exception):
    """Of the script's own."""


def limit(*_: Any) -> None:
    raise Limit


class Handler:
    def __call__(self, *_: Any) -> None:
        limit()

    def method(self, *_: Any) -> None:
        limit()


HANDLERS: dict[str, Callable[..., Any]] = {
    "function": limit,
    "partial": functools.partial(limit, 1),
    "method": Handler().method,
    "object": Handler(),
    "lambda": lambda *_: limit(),
}


@pytest.fixture(params=HANDLERS)
def handled(request: pytest.FixtureRequest) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, HANDLERS[request.param])
    yield
    signal.signal(signal.SIGUSR1, before)


def test_what_a_handler_raises_is_known(handled: None) -> None:
    with pytest.raises(Limit) as caught:
        signal.raise_signal(signal.SIGUSR1)

    assert is_from_handler(caught.value)


def test_what_a_handler_raises_gets_through(handled: None) -> None:
    with pytest.raises(Limit), quiet():
        signal.raise_signal(signal.SIGUSR1)


def test_what_fails_by_itself_does_not() -> None:
    with quiet():
        raise Limit
    assert not is_from_handler(ValueError("never raised"))
