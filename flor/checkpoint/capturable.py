"""What the encoders share: how they say that a value does not fit."""

from __future__ import annotations

from typing import Any

UNFIT: Any = object()
"""In place of a node: the value is not plain data."""


class Uncapturable(Exception):
    """The value has no form from which it could be made again."""


def type_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
