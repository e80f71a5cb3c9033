"""Of which parameters the gradients are cleared before they are used: no checkpoint needs these.

`flor.source.gradients` tells where a loop clears and uses gradients, and what that is called; what
the names mean is looked up in the loop's frame. Where anything is unclear, gradients are kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NamedTuple

from flor.checkpoint.capturable import identity
from flor.checkpoint.frames import NOTHING, attributes, look_up, names_of
from flor.source.gradients import Receiver, Use

NO_USERS = ("torch.optim.lr_scheduler", "torch.profiler.profiler")  # their `step` is another


class _Seen(NamedTuple):
    """A use of gradients: of these parameters, or of all; `cleared` were cleared before it."""

    kind: str
    of: set[int] | None
    cleared: set[int]


def cleared(
    inner: FrameType, within: Sequence[Use], outer: FrameType, around: Sequence[Use]
) -> set[int]:
    """The identities of the parameters that each iteration of the loop in `inner` clears before
    their gradients are used, there or `around` it in the main loop."""
    if not any(use.kind == "backward" for use in within):
        return set()
    here = _look(inner, within)
    candidates: set[int] = set().union(*(seen.cleared for seen in here))
    return candidates - _used(here, candidates) - _used(_look(outer, around), candidates)


def _used(uses: Sequence[_Seen], candidates: set[int]) -> set[int]:
    """The parameters whose gradients may be used before they are cleared."""
    found: set[int] = set()
    for number, use in enumerate(uses):
        before = use.cleared
        if use.kind == "backward":
            # Another network's pass may add to them: they are cleared before their own step.
            later = [seen for seen in uses[number:] if seen.of is not None]
            before = before.union(*(seen.of & seen.cleared for seen in later if seen.of))
        found |= (candidates if use.of is None else candidates & use.of) - before
    return found


def _look(frame: FrameType, uses: Sequence[Use]) -> list[_Seen]:
    with names_of(frame) as (local, module):

        def find(receiver: Receiver | None) -> Any:
            if receiver is None:
                return NOTHING
            return look_up(receiver.path, module if receiver.is_global else local)

        found = []
        for use in uses:
            if any(_is_foreign(find(name), module.get("__name__")) for name in use.within):
                continue
            of = None if use.kind != "step" else _of_step(use, find, module.get("__name__"))
            if of is None or of:
                before = set().union(*(_parameters(find(name)) for name in use.cleared))
                found.append(_Seen(use.kind, of, before))
        return found


def _of_step(use: Use, find: Callable[[Receiver | None], Any], module: Any) -> set[int] | None:
    """The parameters that a `step` uses; none if it is no optimizer's; None if that is unclear."""
    value = find(use.on)
    kind = type(value)
    if value is NOTHING or _is_optimizer(value):
        return _parameters(value) or None
    if "GradScaler" in kind.__name__:
        return _parameters(find(use.given)) or None
    schedules = "Scheduler" in kind.__name__ and "param_groups" not in attributes(value)
    if schedules or any(base.__module__ in NO_USERS for base in kind.__mro__):
        return set()
    home = next((base.__module__ for base in kind.__mro__ if "step" in vars(base)), None)
    return set() if home == module else None  # what a class of the same file does was followed


def _is_foreign(value: Any, module: Any) -> bool:
    """Whether no class of the file is among those that an object is of."""
    known = value is not NOTHING and not isinstance(value, type)
    return known and all(base.__module__ != module for base in type(value).__mro__)


def _parameters(value: Any) -> set[int]:
    """Those that `zero_grad` clears; none where it is not known to."""
    torch = sys.modules.get("torch")
    if torch is None:
        return set()
    if isinstance(value, torch.nn.Module):
        return set(map(identity, value.parameters()))
    if _is_optimizer(value):
        return {identity(item) for group in value.param_groups for item in group["params"]}
    return set()


def _is_optimizer(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.optim.Optimizer)
