"""How large the state of objects is or will be, before the first checkpoint has told."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from flor.checkpoint import arrays

STATES_PER_PARAMETER = {"SGD": 0, "Rprop": 2, "LBFGS": 0, "Adagrad": 1, "RMSprop": 1}
USUAL_STATES = 2  # Adam and its kin
HOST = -1


def guess(objects: Iterable[Any]) -> Counter[int]:
    """Bytes of the objects' tensors on each CUDA device and on the `HOST`, as far as seen."""
    found: Counter[int] = Counter()
    for value in objects:
        for tensor, copies in _tensors(value):
            place = (tensor.device.index or 0) if getattr(tensor, "is_cuda", False) else HOST
            found[place] += arrays.size_of(tensor) * copies
    return found


def _tensors(value: Any) -> Iterator[tuple[Any, int]]:
    """Tensors of an object, and how many of such a size there will be."""
    torch = sys.modules.get("torch")
    if arrays.is_block(value):
        yield value, 1
    elif torch is not None and isinstance(value, torch.nn.Module):
        for tensor in (*value.parameters(), *value.buffers()):
            yield tensor, 1
    elif torch is not None and isinstance(value, torch.optim.Optimizer):
        yield from _of_optimizer(value)


def _of_optimizer(optimizer: Any) -> Iterator[tuple[Any, int]]:
    tensors = [
        item
        for state in optimizer.state.values()
        if isinstance(state, dict)
        for item in state.values()
        if arrays.is_block(item)
    ]
    if tensors:
        yield from ((tensor, 1) for tensor in tensors)
        return
    copies = STATES_PER_PARAMETER.get(type(optimizer).__name__, USUAL_STATES)
    if optimizer.defaults.get("momentum"):
        copies = 1
    for group in optimizer.param_groups:
        for item in group["params"]:
            if item.requires_grad:
                yield item, copies
