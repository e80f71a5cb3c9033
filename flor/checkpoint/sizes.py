"""How large the state of objects is or will be, before the first checkpoint has told."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from flor.checkpoint import arrays

STATES_PER_PARAMETER = {"SGD": 0, "Rprop": 2, "LBFGS": 0, "Adagrad": 1, "RMSprop": 1}
USUAL_STATES = 2  # Adam and its kin


def guess(objects: Iterable[Any]) -> int:
    """Bytes of the objects' tensors on the host or a device, as far as they can be seen."""
    torch = sys.modules.get("torch")
    total = 0
    for value in objects:
        if arrays.is_block(value):
            total += arrays.size_of(value)
        elif torch is not None and isinstance(value, torch.nn.Module):
            total += sum(map(arrays.size_of, value.parameters()))
            total += sum(map(arrays.size_of, value.buffers()))
        elif torch is not None and isinstance(value, torch.optim.Optimizer):
            total += _of_optimizer(value)
    return total


def _of_optimizer(optimizer: Any) -> int:
    tensors = [
        item
        for state in optimizer.state.values()
        if isinstance(state, dict)
        for item in state.values()
        if arrays.is_block(item)
    ]
    if tensors:
        return sum(map(arrays.size_of, tensors))
    parameters = [
        item for group in optimizer.param_groups for item in group["params"] if item.requires_grad
    ]
    size = sum(map(arrays.size_of, parameters))
    if optimizer.defaults.get("momentum"):
        return size
    return size * STATES_PER_PARAMETER.get(type(optimizer).__name__, USUAL_STATES)
