"""What a checkpoint holds, by name; and into which objects it may go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flor.checkpoint import arrays, loaders, modules, rng, signing
from flor.checkpoint.decoding import Decoder, Lost
from flor.checkpoint.leaves import Leaves
from flor.checkpoint.manifest import Manifest, Node
from flor.checkpoint.restoring import Maker, Restoration
from flor.errors import NoCheckpoint
from flor.objects import ObjectStore

LOADER = "loader "  # begins the name of a nested loop's DataLoader among the random states


class State(Mapping[str, Any]):
    """The declared objects' states and the loop's variables, by name.

    Values are made when they are asked for. `place` tells the iteration of each loop around,
    `missing` what the checkpoint could not hold.
    """

    def __init__(self, manifest: Manifest, store: ObjectStore, *, trust: bool = False) -> None:
        self.manifest = manifest
        self._leaves = Leaves(store, manifest.leaves)
        self._trust = trust
        self._decoder: Decoder | None = None
        self._signed: dict[int, str] | None = None
        self._nodes: dict[str, Node] = {}
        for frame in manifest.frames:
            self._nodes |= frame.values
        self._nodes |= manifest.objects

    @property
    def run_id(self) -> str:
        return self.manifest.run_id

    @property
    def place(self) -> dict[str, int]:
        return {step.name: step.iteration for step in self.manifest.place}

    @property
    def missing(self) -> dict[str, str]:
        return {item.name: item.reason for item in self.manifest.missing}

    def __getitem__(self, name: str) -> Any:
        if self._decoder is None:
            self._decoder = Decoder(self.manifest, self._leaves, self._trusts, {})
        return self._decoder.decode(self.node(name))

    def __contains__(self, name: object) -> bool:
        return name in self._nodes

    def get(self, name: str, default: Any = None) -> Any:
        """As of a dictionary. What is there and cannot be read still raises an error."""
        if name not in self:
            return default
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def __repr__(self) -> str:
        place = ", ".join(f"{name} {number}" for name, number in self.place.items())
        return f"<state of run {self.run_id} at {place}: {', '.join(self)}>"

    def node(self, name: str) -> Node:
        if name not in self._nodes:
            held = ", ".join(self._nodes) or "nothing"
            raise NoCheckpoint(f"this checkpoint holds no {name!r}; it holds {held}")
        return self._nodes[name]

    def check(self) -> None:
        """Read and verify all of it. Raises DamagedCheckpoint or BucketError."""
        self._leaves.load()

    def restore(self, targets: Mapping[str, Any], *, with_rng: bool = False) -> list[str]:
        """Put the state into objects, all or none; the names of random generators not here.

        Raises RestoreError, NoCheckpoint, DamagedCheckpoint, UntrustedPickle.
        """
        self.check()
        decoder = Maker(self.manifest, self._leaves, self._trusts, targets)
        restoration = Restoration(decoder, targets)
        for name, target in sorted(targets.items(), key=_order):
            restoration.add(name, target, self._node_for(name, target))
        states = self._rng_states() if with_rng else {}
        held = {name: state for name, state in states.items() if not isinstance(state, Lost)}
        rng.check(held)
        restoration.apply()
        return [*rng.restore(held), *(states.keys() - held.keys())]

    def _node_for(self, name: str, target: Any) -> Node:
        """What a loop ran over and was not declared is known by the name of the loop."""
        if name in self._nodes:
            return self._nodes[name]
        found = {
            key.removeprefix(LOADER): node
            for key, node in self.manifest.rng.items()
            if key.startswith(LOADER)
        }
        if name in found:
            return found[name]
        if loaders.is_loader(target) and found:
            if len(found) == 1:
                return next(iter(found.values()))
            raise NoCheckpoint(
                f"this checkpoint holds no {name!r}; DataLoaders that were not declared go by the "
                f"loops that ran over them: {', '.join(f'{key}=…' for key in found)}"
            )
        return self.node(name)

    def _rng_states(self) -> dict[str, Any]:
        decoder = Decoder(self.manifest, self._leaves, self._trusts, {})
        found = self.manifest.rng.items()
        return {name: decoder.decode(v) for name, v in found if not name.startswith(LOADER)}

    def _trusts(self, number: int, content: bytes) -> bool:
        """Whether these bytes may be unpickled: the user's own, as they were signed."""
        if self._trust:
            return True
        if self._signed is None:
            count = len(self.manifest.leaves)
            numbers = [n for n in self.manifest.pickles if 0 <= n < count]
            digests = {number: signing.digest(self._leaves[number]) for number in numbers}
            own = signing.is_own(self.manifest.signature, digests.values())
            self._signed = digests if own else {}
        return self._signed.get(number) == signing.digest(content)


def _order(item: tuple[str, Any]) -> tuple[int, bool]:
    """Modules, then tensors and arrays: what else there is may share their memory."""
    target = item[1]
    return modules.rank(target), not arrays.is_block(target)
