"""Random generators from their states.

A state is tried on a new generator, so that one which does not fit is found before anything is
changed. Libraries check most of it; a position that is not among the state's numbers they would
read from memory that is not the generator's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flor.checkpoint.arrays import BIT_GENERATORS
from flor.errors import DamagedCheckpoint

MT_NUMBERS = 624  # of a Mersenne twister, as NumPy and torch have it
PHILOX_NUMBERS = 4
MOST_POOL = 1024  # of a seed: four numbers are usual


def make(library: str, state: Any, seeds: list[Any] | None, device: str | None) -> Any:
    """A generator with that state; `seeds` tell which children it spawns next."""
    if library == "random":
        return python(state)
    if library == "torch":
        return of_torch(state, device)
    if library == "numpy.RandomState":
        return random_state(state)
    import numpy as np

    bits = _bits(state, None if seeds is None else _seeds(seeds))
    bits.state = state
    return np.random.Generator(bits)


def python(state: Any) -> Any:
    """A generator of the module `random`."""
    import random

    version, internal, gauss = state
    made = random.Random()  # noqa: S311 - no secrets
    made.setstate((version, tuple(internal), gauss))
    return made


def of_torch(state: Any, device: str | None) -> Any:
    import torch

    made = torch.Generator(device)
    made.set_state(state)
    if made.device.type == "cpu":
        content = state.numpy().tobytes()
        left, position = (int.from_bytes(content[a:b], "little") for a, b in ((8, 12), (16, 24)))
        _insist(left + position, MT_NUMBERS + 1)
    return made


def random_state(state: Any) -> Any:
    """A generator of NumPy's older kind."""
    import numpy as np

    made = np.random.RandomState(_bits(state, None))
    made.set_state(state)
    return made


def _bits(state: Any, seed: Any) -> Any:
    """A bit generator of the state's kind. Raises DamagedCheckpoint for an impossible state."""
    import numpy as np

    kind = state["bit_generator"]
    if kind not in BIT_GENERATORS:
        raise DamagedCheckpoint(f"an unknown random generator: {kind!r:.80}")
    if kind == "MT19937":
        _insist(state["state"]["pos"], MT_NUMBERS)
    elif kind == "Philox":
        _insist(state["buffer_pos"], PHILOX_NUMBERS)
    return getattr(np.random, kind)(0 if seed is None else seed)


def _seeds(found: list[Any]) -> Any:
    import numpy as np

    entropy, spawn_key, pool_size, children = found
    _insist(pool_size, MOST_POOL)
    return np.random.SeedSequence(
        entropy, spawn_key=spawn_key, pool_size=pool_size, n_children_spawned=children
    )


def _insist(position: Any, most: int) -> None:
    if not 0 <= int(position) <= most:
        raise DamagedCheckpoint(f"a random generator's position {position!r:.80}, of {most}")


def setter(target: Any, value: Any) -> Callable[[], object] | None:
    """Gives a random generator the state of another of its kind; None if it is of another."""
    if type(target) is not type(value):
        return None
    if hasattr(target, "bit_generator"):
        bits, new = target.bit_generator, value.bit_generator
        if type(bits) is not type(new):
            return None
        return lambda: bits.__setstate__(new.__reduce__()[2])  # as a pickle: its seed goes with it
    if hasattr(target, "get_state") and hasattr(target, "device"):
        if target.device != value.device:
            return None
        return lambda: target.set_state(value.get_state())
    if hasattr(target, "set_state"):
        state = value.get_state(legacy=False)
        if target.get_state(legacy=False)["bit_generator"] != state["bit_generator"]:
            return None
        return lambda: target.set_state(state)
    return lambda: target.setstate(value.getstate())
