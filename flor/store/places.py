"""Places in loops, as users name them: by number, or by what a loop yielded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from flor.model import Step

LONGEST = 40  # of a value in a message
VALUE = "_value"  # after a loop's name: what it yielded, as in the data frame

Place = Mapping[str, "int | float | str"]
"""Iterations by the names of their loops. A number that is not whole is none, and told so.

Under the name with `_value` behind, it is what the loop yielded, unless a loop is called so.
"""


class Wanted(NamedTuple):
    """An iteration of a loop: by its number, or by what the loop `yielded`."""

    loop: str
    value: int | float | str
    yielded: bool

    def fits(self, step: Step | None) -> bool:
        if step is None:
            return False
        return is_same(yielded(step) if self.yielded else step.iteration, self.value)


def resolved(place: Place, names: Collection[str]) -> list[Wanted]:
    """What a place means where loops have these names."""
    found = []
    for name, value in place.items():
        loop = name.removesuffix(VALUE)
        if name not in names and loop in names:
            found.append(Wanted(loop, value, True))
        else:
            found.append(Wanted(name, value, isinstance(value, str)))
    return found


def yielded(step: Step) -> Any:
    """What the loop yielded; where that is not known, the iteration's number."""
    return step.iteration if step.value is None else step.value


def shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def is_same(value: Any, wanted: float | str) -> bool:
    """Whether a loop's value is meant; True is not 1."""
    return not isinstance(value, bool) and bool(value == wanted)
