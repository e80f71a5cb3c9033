"""What the encoders share: how they say that a value does not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

identity: Callable[[object], int] = object.__hash__
"""Tells an object from all others, as `id` does, but raises no audit event, which costs more."""

UNFIT: Any = object()
"""In place of a node: the value is not plain data."""


class Uncapturable(Exception):
    """The value has no form from which it could be made again."""


def type_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def has_only_attributes(kind: type) -> bool:
    """Whether objects of the class are nothing but their `__dict__`: no base of it was written in
    C or has slots."""
    return not any(
        vars(base).get("__slots__") or _is_native(vars(base).get("__new__"))
        for base in kind.__mro__[:-1]
    )


def _is_native(new: object) -> bool:
    return new is not None and not isinstance(new, staticmethod)
