"""The loops around a record, and how long their iterations take.

The current loop is a context variable: threads and asyncio tasks each have their own. A thread
that runs no flor loop logs under the loop that the main thread is in.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

T = TypeVar("T")

CHUNK = 4096  # iterations whose times are written together
FLUSH_SECONDS = 5.0  # and no later than this, so that a killed run has its timings
SHORT_SECONDS = 100e-6  # iterations shorter than this on average are summed, not listed
MAX_LABEL = 1000  # characters; a longer string is content, not the iteration's label


class Level:
    """One execution of one loop. The level without a parent is the top of the script.

    It belongs to the recorder that writes about it. When that one ends while the loop goes on (a
    fork, `flor.commit()` in a loop), the next recorder adopts it with the first record inside.
    """

    __slots__ = (
        "announced",
        "block_of",
        "finished",
        "id",
        "iteration",
        "label",
        "label_unsaid",
        "labelled",
        "main_of",
        "name",
        "owner",
        "parent",
        "parent_iteration",
        "size",
        "started",
        "unsaid",
    )

    def __init__(self, number: int, name: str, parent: Level | None, owner: Any) -> None:
        self.id = number
        self.name = name
        self.parent = parent
        self.owner = owner
        self.parent_iteration: int = parent.iteration if parent is not None else 0
        self.iteration: int = 0
        self.size: int | None = None
        self.started = 0.0
        self.announced = False  # the loop is in the journal
        self.label: Any = None
        self.labelled = False  # this iteration yielded something that names it
        self.label_unsaid = False  # which is to be written with the iteration's first record
        self.finished = False
        self.unsaid = True  # there is something to write before the next record
        self.main_of: Any = None  # the checkpointing block whose main loop it is
        self.block_of: tuple[Any, ...] = ()  # those in whose main loop it is directly nested

    def orphan(self) -> None:
        """Its recorder has ended; whoever comes next says it all again."""
        self.announced = False
        self.label_unsaid = self.labelled
        self.unsaid = True

    def chain(self) -> list[Level]:
        """From the outermost loop to this one."""
        found = []
        level: Level | None = self
        while level is not None and level.parent is not None:
            found.append(level)
            level = level.parent
        return found[::-1]


current: ContextVar[Level | None] = ContextVar("flor_level", default=None)

_labels: dict[type, bool] = {int: True, float: True, str: True, bool: True, type(None): True}


def is_label(kind: type) -> bool:
    """Whether items of this type name their iteration: numbers and strings, numpy's too."""
    try:
        known = _labels.get(kind)
        if known is None:
            numpy_scalar = kind.__module__ == "numpy" and issubclass(kind, _numpy_scalars())
            known = _labels[kind] = issubclass(kind, (int, float, str)) or numpy_scalar
    except Exception:  # noqa: BLE001 - a metaclass may raise anything; such an item is no label
        return False
    return known


def _numpy_scalars() -> tuple[type, ...]:
    numpy = sys.modules["numpy"]
    return (numpy.number, numpy.bool_, numpy.str_)


class Loop(Generic[T]):
    """What `flor.loop` returns: an iterator over the iterable's items.

    Each `for` over it is one execution of the loop; `next()` works as on a generator.
    """

    __slots__ = ("_iterable", "_running", "_start")

    def __init__(self, iterable: Iterable[T], start: Callable[[Iterable[T]], Iterator[T]]) -> None:
        self._iterable = iterable
        self._start = start
        self._running: Iterator[T] | None = None

    def __iter__(self) -> Iterator[T]:
        # Only the `for` statement holds the generator, so that `break` closes it at once.
        return self._running if self._running is not None else self._start(self._iterable)

    def __next__(self) -> T:
        if self._running is None:
            self._running = self._start(self._iterable)
        return next(self._running)

    def __bool__(self) -> bool:
        return bool(self._iterable)  # the iterable's own truth, like its length

    def close(self) -> None:
        if isinstance(self._running, Generator):
            self._running.close()

    def __repr__(self) -> str:
        return f"flor.loop over {self._iterable!r}"


class SizedLoop(Loop[T]):
    """A loop over something that has a length."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]  # chosen because it has __len__


def make_loop(iterable: Iterable[T], start: Callable[[Iterable[T]], Iterator[T]]) -> Loop[T]:
    kind = SizedLoop if hasattr(type(iterable), "__len__") else Loop
    return kind(iterable, start)


def length(iterable: Any) -> int | None:
    """The length of a plain container. Others are not asked: their `__len__` is the user's code."""
    plain = (list, tuple, range, dict, set, frozenset, str, bytes)
    return len(iterable) if type(iterable) in plain else None


class Times:
    """Collects iteration times of one loop and writes them in chunks."""

    __slots__ = ("each", "first", "flush_at")

    def __init__(self, now: float) -> None:
        self.each: list[float] = []
        self.first = 0
        self.flush_at = now + FLUSH_SECONDS

    def flush(self, loop: int, now: float, emit: Callable[[dict[str, Any]], None]) -> None:
        self.flush_at = now + FLUSH_SECONDS
        count = len(self.each)
        if not count:
            return
        total = sum(self.each)
        listed = None
        if total > SHORT_SECONDS * count:
            seconds = array("f", self.each)
            if sys.byteorder == "big":
                seconds.byteswap()
            listed = base64.b64encode(seconds.tobytes()).decode()
        emit(
            {
                "t": "times",
                "loop": loop,
                "first": self.first,
                "n": count,
                "sum": round(total, 7),
                "each": listed,
            }
        )
        self.drop()

    def drop(self) -> None:
        self.first += len(self.each)
        self.each.clear()
