"""What the encoders share: how they tell values apart, and say that one does not fit."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

OPAQUE = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type, types.MethodType)
"""Code rather than state."""

identity: Callable[[object], int] = object.__hash__
"""Tells an object from all others, as `id` does, but raises no audit event, which costs more."""

UNFIT: Any = object()
"""In place of a node: the value is not plain data."""


class Uncapturable(Exception):
    """The value has no form from which it could be made again."""


def type_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def is_library(kind: type) -> bool:
    """Whether the class is of an installed package: its objects may be more than they show."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if kind.__module__ == "__main__":
        return False
    if not isinstance(file, str):
        return True
    return "site-packages" in file or "dist-packages" in file or file.startswith(_STANDARD)


_STANDARD = types.__file__.rpartition("types")[0]


def has_state(value: Any) -> bool:
    """Whether objects of its type give and take their state. None of their code runs."""
    kind = type(value)
    return callable(getattr(kind, "state_dict", None)) and hasattr(kind, "load_state_dict")


def has_only_attributes(kind: type) -> bool:
    """Whether objects of the class are nothing but their `__dict__`: no base of it was written in
    C or has slots."""
    return not any(
        vars(base).get("__slots__") or _is_native(vars(base).get("__new__"))
        for base in kind.__mro__[:-1]
    )


def _is_native(new: object) -> bool:
    return new is not None and not isinstance(new, staticmethod)
