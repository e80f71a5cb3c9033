"""What an object that is to be restored can take, and how it takes it."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from flor.checkpoint import arrays
from flor.checkpoint.decoding import Instance
from flor.checkpoint.encoding import is_plain
from flor.errors import RestoreError

ABSENT: Any = object()
"""In place of a target: nothing is there yet."""

CHANGEABLE = (list, bytearray, dict, set, deque)


def unfit(name: str, value: Any, target: Any) -> RestoreError:
    if arrays.is_block(value) and arrays.is_block(target):
        return RestoreError(
            f"{name} is {shape_of(value)} in the checkpoint, and the object to restore is "
            f"{shape_of(target)}"
        )
    kind = value.type_name if isinstance(value, Instance) else type(value).__name__
    return RestoreError(
        f"{name} is {one(kind)} in the checkpoint and cannot be put into {kind_of(target)}; "
        f"take it from the state: flor.load(…)[{name!r}]"
    )


def shape_of(block: Any) -> str:
    return f"{tuple(block.shape)} of {str(block.dtype).removeprefix('torch.')}"


def kind_of(value: Any) -> str:
    """As a text reads on: a list, an int, nothing."""
    return "nothing" if value is ABSENT else one(type(value).__name__)


def one(kind: str) -> str:
    return f"an {kind}" if kind[:1] in "AEIOUaeiou" else f"a {kind}"


def takes_tensor(target: Any, value: Any) -> bool:
    """Whether a tensor can be given the values of another in its place."""
    torch = sys.modules["torch"]
    return (
        isinstance(target, torch.Tensor)
        and (target.shape, target.dtype) == (value.shape, value.dtype)
        and target.layout is value.layout is torch.strided
        and target.device.type != "meta"
        and not target.is_inference()
        and all(step or side < 2 for step, side in zip(target.stride(), target.shape, strict=True))
    )


def to_device(value: Any, device: str | None) -> Any:
    """A new tensor goes where the old one was, if there is such a place here."""
    torch = sys.modules["torch"]
    if device is None or value.device.type == "meta":
        return value
    place = torch.device(device)
    there = place.type == "cuda" and torch.cuda.is_available()
    if not there or (place.index or 0) >= torch.cuda.device_count():
        return value
    moved = value.detach().to(place)
    if isinstance(value, torch.nn.Parameter):
        moved = torch.nn.Parameter(moved, requires_grad=value.requires_grad)
    elif value.requires_grad:
        moved.requires_grad_()
    if value.grad is not None:
        moved.grad = value.grad.to(place)
    return moved


def is_of(target: Any, type_name: str) -> bool:
    """Whether it is of that class, which may be in `__main__` for one of two scripts."""
    kind = type(target)
    return is_plain(kind) and kind.__qualname__.rpartition(".")[2] == type_name.rpartition(".")[2]


def without_init(name: str, type_name: str) -> Any:
    """An empty object of a class of the user's own that is there. Runs none of its code."""
    for module_name in (type_name.rpartition(".")[0], "__main__"):
        module = sys.modules.get(module_name)
        kind = vars(module).get(type_name.rpartition(".")[2]) if module is not None else None
        if isinstance(kind, type) and is_plain(kind) and not hasattr(kind, "__del__"):
            return object.__new__(kind)
    raise RestoreError(
        f"{name} is a {type_name} in the checkpoint, which this process does not know: import the "
        "module that defines it first"
    )


def replace_content(target: Any, value: Any) -> None:
    if isinstance(target, (list, bytearray)):
        target[:] = value
    elif isinstance(target, (dict, set)):
        target.clear()
        target.update(value)
    else:
        target.clear()
        target.extend(value)
