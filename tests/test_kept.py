"""Whether objects are what a checkpoint that is written holds of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flor.checkpoint.encoding import Encoder
from flor.checkpoint.kept import Kept
from flor.checkpoint.manifest import Frame, Leaf, Manifest
from flor.checkpoint.staging import Staging

torch = pytest.importorskip("torch")


class Pair:
    def __init__(self) -> None:
        self.leaf, self.of = 1, np.zeros(3)


class Objects:
    """Of each kind, small and large."""

    def __init__(self) -> None:
        self.net = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.BatchNorm1d(300))
        self.optimizer = torch.optim.Adam(self.net.parameters())
        self.net(torch.randn(4, 300)).sum().backward()
        self.optimizer.step()
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.array, self.rows = np.zeros(50_000), [1, {"leaf": 0, "t": "x", "id": 3}, float("nan")]
        self.pair = Pair()


def manifest(nodes: dict[str, Any]) -> Manifest:
    """Half of them as variables."""
    objects = {key: node for key, node in nodes.items() if key < "o"}
    values = {key: node for key, node in nodes.items() if key not in objects}
    frames = (Frame("train.py", "main", 3, "epoch", values),)
    return Manifest("run", 1, (), None, True, objects, frames)


@pytest.fixture
def kept(tmp_path: Path) -> Callable[[Objects], bool]:
    """Whether objects are as they were when they were first asked about."""
    staging, found = Staging(), list[Kept]()

    def same(objects: Objects) -> bool:
        staging.begin()
        encoder = Encoder(staging, {})
        nodes = {name: encoder.root(name, value) for name, value in vars(objects).items()}
        pending = staging.end()
        if found:
            return found[0].holds(manifest(nodes), pending)
        staging.remember(pending, [Leaf("0", 0, item.size_bytes, 0) for item in pending])
        found.append(Kept(manifest(nodes), pending, set()))
        return True

    return same


def test_what_has_not_changed_is_the_same(kept: Callable[[Objects], bool]) -> None:
    objects = Objects()
    assert kept(objects)
    objects.net.eval(), objects.net.train()
    assert kept(objects)


CHANGES: dict[str, Callable[[Objects], Any]] = {
    "data": lambda o: o.net[0].weight.data.mul_(0.5),
    "one number": lambda o: o.net[0].weight.data.view(-1)[-1].add_(1),
    "statistics": lambda o: o.net[1](torch.randn(4, 300)),
    "mode": lambda o: o.net.eval(),
    "attribute": lambda o: setattr(o.net, "rate", 1),
    "optimizer": lambda o: o.optimizer.param_groups[0].update(lr=1),
    "scheduler": lambda o: setattr(o.scheduler, "last_epoch", 7),
    "array": lambda o: o.array.__setitem__(40_000, 1),
    "longer": lambda o: o.rows.append(1),
    "inside": lambda o: o.rows[1].update(leaf=1),
    "another key": lambda o: o.rows[1].update(id=4),
    "a new key": lambda o: o.rows[1].update(to=4),
    "instance": lambda o: setattr(o.pair, "leaf", 2),
    "array of an instance": lambda o: o.pair.of.__setitem__(0, 2),
    "another type": lambda o: setattr(o.pair, "leaf", 1.0),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_has_changed_is_seen(kept: Callable[[Objects], bool], what: str) -> None:
    objects = Objects()
    assert kept(objects)
    CHANGES[what](objects)
    assert not kept(objects)
