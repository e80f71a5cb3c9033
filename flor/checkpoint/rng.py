"""The states of the random generators that a script may draw from.

Read without importing anything, starting CUDA or drawing a number.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from flor.checkpoint import generators
from flor.errors import DamagedCheckpoint, FlorError, RestoreError


def states() -> dict[str, Any]:
    """By generator: `random`, `numpy`, `torch`, `cuda:0`…; as far as they are imported."""
    found: dict[str, Any] = {}
    standard = sys.modules.get("random")
    if hasattr(standard, "getstate"):  # a script may have a random.py of its own
        assert standard is not None
        version, internal, gauss = standard.getstate()
        found["random"] = (version, list(internal), gauss)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None and hasattr(numpy_random, "get_state"):
        found["numpy"] = numpy_random.get_state(legacy=False)
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_rng_state"):
        found["torch"] = torch.get_rng_state()
        cuda = getattr(torch, "cuda", None)
        if cuda is not None and cuda.is_initialized() and not _is_capturing(cuda):
            for index, generator in enumerate(cuda.default_generators):
                found[f"cuda:{index}"] = generator.get_state()
    return found


def check(found: Mapping[str, Any]) -> None:
    """Try each state on a new generator. Raises DamagedCheckpoint or RestoreError."""
    for name, state in found.items():
        try:
            _check(name, state)
        except FlorError:
            raise
        except Exception as error:  # what a manifest may hold is anybody's choice
            raise DamagedCheckpoint(
                f"the state of the random generator {name!r:.80} cannot be set: {error!r:.200}; "
                "without with_rng the rest can be restored"
            ) from error


def _check(name: str, state: Any) -> None:
    if name == "random":
        generators.python(state)
    elif name == "numpy":
        import numpy as np

        there = generators.random_state(state).get_state(legacy=False)["bit_generator"]
        here = np.random.get_state(legacy=False)["bit_generator"]
        if there != here:
            raise RestoreError(
                f"NumPy's global random generator is a {there} in the checkpoint, and here a "
                f"{here}; set it first: np.random.set_bit_generator(np.random.{there}())"
            )
    elif name == "torch":
        generators.of_torch(state, "cpu")
    else:
        index = _device(name)
        if _is_here(index):
            generators.of_torch(state, f"cuda:{index}")


def restore(found: Mapping[str, Any]) -> list[str]:
    """Set the generators, whose states were checked; the names of those that are not here."""
    absent = []
    for name, state in found.items():
        if name == "random":
            import random

            version, internal, gauss = state
            random.setstate((version, tuple(internal), gauss))
        elif name == "numpy":
            import numpy as np

            np.random.set_state(state)
        elif name == "torch":
            import torch

            torch.set_rng_state(state)
        elif not _restore_device(name, state):
            absent.append(name)
    return absent


def _restore_device(name: str, state: Any) -> bool:
    import torch

    index = _device(name)
    if not _is_here(index):
        return False
    torch.cuda.init()  # type: ignore[no-untyped-call]
    torch.cuda.default_generators[index].set_state(state)
    return True


def _device(name: str) -> int:
    kind, _, index = name.partition(":")
    if kind != "cuda" or not index.isdecimal():
        raise DamagedCheckpoint(f"no such random generator: {name!r:.80}")
    return int(index)


def _is_here(index: int) -> bool:
    import torch

    return torch.cuda.is_available() and index < torch.cuda.device_count()


def _is_capturing(cuda: Any) -> bool:
    """Whether a graph is being captured: nothing may be asked of the device then."""
    return bool(cuda.is_current_stream_capturing())
