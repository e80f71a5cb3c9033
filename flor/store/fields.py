"""Fields of journal lines, checked: what a database is given has the type it expects.

Each function returns the field's value or raises one of NONSENSE.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar

from flor.store.cells import MAX_DEPTH, clean, nesting, to_json

T = TypeVar("T")

MAX_INT = 2**63 - 1
MAX_ITERATION = 2**31 - 1  # a ctx_id holds no more

NONSENSE = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""What reading a line of the wrong shape raises."""


def utc_text(moment: datetime) -> str:
    """The form in which both databases keep a naive UTC time."""
    return moment.isoformat(" ", "microseconds")


def later(tstamp: str, seconds: float) -> str | None:
    """A time that many seconds after another, if there is such a time."""
    try:
        return utc_text(datetime.fromisoformat(tstamp) + timedelta(seconds=seconds))
    except (OverflowError, ValueError):
        return None


def utc_from_iso(value: Any) -> str:
    """An ISO 8601 time, with or without an offset, in that form."""
    moment = datetime.fromisoformat(text(value).replace("Z", "+00:00"))
    offset = moment.utcoffset()
    return utc_text((moment - offset if offset else moment).replace(tzinfo=None))


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return clean(value)


def digest(value: Any) -> str:
    """The name of an object in the store."""
    if re.fullmatch(r"[0-9a-f]{64}", text(value)) is None:
        raise ValueError(f"{value!r} is not a digest")
    return str(value)


def json_text(data: Any) -> str:
    """JSON of anything, as a database takes it."""
    found = to_json(data)
    if nesting(found) > MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
    return found


def integer(number: Any) -> int:
    if type(number) is not int or not -MAX_INT <= number <= MAX_INT:
        raise TypeError(f"{number!r} is not a whole number of 64 bits")
    return number


def iteration(number: Any) -> int:
    if type(number) is not int or not 0 <= number < MAX_ITERATION:
        raise TypeError(f"{number!r} is not the number of an iteration")
    return number


def real(number: Any) -> float:
    if type(number) not in (int, float):
        raise TypeError(f"{number!r} is not a number")
    if not math.isfinite(number):
        raise ValueError(f"{number!r} is not a time")
    return float(number)


def maybe(read: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else read(value)
