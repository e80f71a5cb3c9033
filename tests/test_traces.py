"""What objects remember that nobody declared: samplers, datasets, what modules hold."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flor.errors import RestoreError
from tests.checkpointing import take

torch = pytest.importorskip("torch")
data = torch.utils.data


class Shuffled:
    """A sampler; `kind` is how it draws."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind, self.count, self.order = kind, 0, list(range(12))
        self.rng: Any = random.Random(seed)
        if kind == "numpy":
            self.rng = np.random.default_rng(seed)
        elif kind == "legacy":
            self.rng = np.random.RandomState(seed)
        elif kind == "torch":
            self.rng = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[int]:
        self.count += 1
        if self.kind == "count":
            return iter(np.random.RandomState(self.count).permutation(12).tolist())
        if self.kind == "order":
            random.Random(7).shuffle(self.order)
            return iter(self.order)
        if self.kind == "torch":
            return iter(torch.randperm(12, generator=self.rng).tolist())
        if self.kind == "random":
            return iter(self.rng.sample(range(12), 12))
        return iter(self.rng.permutation(12).tolist())


class Pairs:
    """A sampler of batches around a sampler."""

    def __init__(self, sampler: Any) -> None:
        self.inner = [sampler]

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[list[int]]:
        items = list(self.inner[0])
        return iter([items[i : i + 2] for i in range(0, 12, 2)])


class Noisy:
    """A dataset that draws random numbers itself, by a transform."""

    def __init__(self, seed: int, folder: str = "here") -> None:
        self.folder, self.size, self.seen = folder, 12, 0
        self.transforms = [Noise(seed), Noise(seed + 1)]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> float:
        self.seen += 1
        value = float(index + self.seen)
        for transform in self.transforms:
            value = transform(value)
        return value


class Noise:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, value: float) -> float:
        return float(value + self.rng.random())


class Stream:
    """Batches of the user's own."""

    def __init__(self, seed: int) -> None:
        self.rng, self.place = random.Random(seed), 0

    def __iter__(self) -> Iterator[float]:
        self.place += 1
        return iter([self.rng.random() + self.place for _ in range(3)])


def drawn(source: Any) -> list[Any]:
    return [item.tolist() if hasattr(item, "tolist") else item for item in source]


SOURCES: dict[str, Callable[[int], Any]] = {
    **{
        kind: lambda seed, kind=kind: data.DataLoader(range(12), 4, sampler=Shuffled(kind, seed))
        for kind in ("numpy", "legacy", "torch", "random", "count", "order")
    },
    "batches": lambda seed: data.DataLoader(
        range(12), batch_sampler=Pairs(Shuffled("numpy", seed))
    ),
    "dataset": lambda seed: data.DataLoader(Noisy(seed)),
    "part of a dataset": lambda seed: data.DataLoader(data.Subset(Noisy(seed), [1, 5, 7])),
    "datasets": lambda seed: data.DataLoader(data.ConcatDataset([Noisy(seed), Noisy(seed + 5)])),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_a_loader_gives_what_it_would_have_given(tmp_path: Path, kind: str) -> None:
    loader, other = SOURCES[kind](1), SOURCES[kind](20)
    drawn(loader)
    state = take(tmp_path, {"loader": loader})
    expected = drawn(loader)

    state.restore({"loader": other})

    assert drawn(other) == expected
    assert drawn(other) == drawn(loader)


def test_what_a_dataset_was_told_stays(tmp_path: Path) -> None:
    state = take(tmp_path, {"loader": data.DataLoader(Noisy(1, "there"))})
    other = data.DataLoader(Noisy(2, "here"))

    state.restore({"loader": other})

    assert other.dataset.folder == "here"


def test_workers_draw_for_themselves(tmp_path: Path) -> None:
    loader = data.DataLoader(Noisy(1), num_workers=2, sampler=Shuffled("count", 1))

    state = take(tmp_path, {"loader": loader})

    assert set(state.manifest.objects["loader"]["state"]["of"]) == {
        *("sampler.count", "sampler.order", "sampler.rng")
    }


def test_another_sampler_is_refused(tmp_path: Path) -> None:
    state = take(tmp_path, {"loader": SOURCES["batches"](1)})
    with pytest.raises(RestoreError, match=r"has no batch_sampler\.inner"):
        state.restore({"loader": data.DataLoader(range(12))})


class Warmup:
    """Beside the layers of a module."""

    def __init__(self) -> None:
        self.count = 0

    def step(self) -> float:
        self.count += 1
        return min(1.0, self.count / 20)


class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.layer, self.warmup, self.rng = torch.nn.Linear(1, 1), Warmup(), random.Random(seed)
        self.inner = torch.nn.Sequential(torch.nn.Linear(1, 1))
        self.inner.schedules = [Warmup(), Warmup()]

    def draw(self) -> float:
        return self.warmup.step() * self.rng.random() + self.inner.schedules[1].step()


def test_a_module_keeps_what_its_objects_remember(tmp_path: Path) -> None:
    net, other = Net(1), Net(2)
    net.draw()
    state = take(tmp_path, {"net": net})
    expected = [net.draw(), net.draw()]
    warmup = other.warmup

    state.restore({"net": other})

    assert [other.draw(), other.draw()] == expected
    assert other.warmup is warmup


class Asked:
    """Tells when one of its properties is read."""

    reads = 0

    @property
    def optimizer(self) -> None:
        Asked.reads += 1

    epoch = generator = optimizer

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def __iter__(self) -> Iterator[int]:
        return iter([0])


def test_properties_are_not_read(tmp_path: Path) -> None:
    take(tmp_path, {"asked": Asked(), "loader": data.DataLoader([1], sampler=Asked())})
    assert Asked.reads == 0


def test_what_holds_itself_has_an_end(tmp_path: Path) -> None:
    net, sampler = Net(1), Shuffled("numpy", 1)
    net.warmup.owner = net.warmup.parts = [net, net.warmup, sampler]
    sampler.net, sampler.ring = net, sampler

    state = take(tmp_path, {"net": net, "loader": data.DataLoader(range(12), sampler=sampler)})
    state.restore({"net": net})
