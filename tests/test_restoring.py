"""Objects take the state of a checkpoint: in place, all or none, and go on as if nothing was."""

from __future__ import annotations

import copy
import random
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flor.checkpoint.state import State
from flor.errors import FlorError, NoCheckpoint, RestoreError
from tests.checkpointing import reread, store_of, take

torch = pytest.importorskip("torch")
nn, optim = torch.nn, torch.optim
schedulers = optim.lr_scheduler


@pytest.fixture(autouse=True)
def own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@dataclass
class Tracker:
    """Of the user's own."""

    best: float = 0.0
    rows: list[Any] = field(default_factory=list)
    weights: Any = None


class Meter:
    """Keeps its state in its own way; `broken` makes it fail half-way."""

    broken = False

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if Meter.broken:
            Meter.broken = False
            raise KeyError("half-way")


class Never(Meter):
    """Takes no state at all."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


def network(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.2), nn.Linear(3, 1))
    net[0].bias.requires_grad_(False)
    net[1].register_buffer("unsaved", torch.rand(2), persistent=False)
    net.rate = 0.5 + seed
    net[1].eval()
    return net


def full(net: Any) -> list[Any]:
    """All that is in a module."""
    found = [(k, v.detach().tolist(), v.requires_grad) for k, v in net.named_parameters()]
    found += [(k, b.tolist()) for k, b in net.named_buffers()]
    grads = [None if p.grad is None else p.grad.tolist() for p in net.parameters()]
    return [*found, *grads, [m.training for m in net.modules()], getattr(net, "rate", None)]


# --- in place ---------------------------------------------------------------------------------


def test_plain_objects_are_changed_where_they_are(tmp_path: Path) -> None:
    rows, table = [1, [2]], {"a": {"b": [3]}, 4: deque([5])}
    state = take(tmp_path, {"rows": rows, "table": table})
    inner, deep, queue = rows[1], table["a"]["b"], table[4]  # type: ignore[index]
    rows[:] = [7, inner, 8]
    inner.append(9)  # type: ignore[attr-defined]
    table["x"] = 1  # type: ignore[assignment]
    deep.clear()
    queue.clear()  # type: ignore[attr-defined]

    state.restore({"rows": rows, "table": table})

    assert rows == [1, [2]]
    assert rows[1] is inner
    assert table == {"a": {"b": [3]}, 4: deque([5])}
    assert table["a"]["b"] is deep
    assert table[4] is queue


def test_a_factory_that_is_code_stays_the_one_that_is_there(tmp_path: Path) -> None:
    counts = defaultdict(lambda: 7, a=1)
    state = take(tmp_path, {"counts": counts})
    other: Any = defaultdict(lambda: 8, b=2)

    state.restore({"counts": other})

    assert (other, other["new"]) == ({"a": 1, "new": 8}, 8)
    assert state["counts"] == {"a": 1}
    with pytest.raises(KeyError):
        state["counts"]["new"]


def test_tensors_and_arrays_are_changed_where_they_lie(tmp_path: Path) -> None:
    tensors = [
        torch.arange(6.0).reshape(2, 3).T,
        torch.ones(2, requires_grad=True),
        torch.tensor(3),
    ]
    array = np.arange(4.0)
    objects = {"tensors": tensors, "array": array, "tuple": (array, tensors[0])}
    state = take(tmp_path, objects)
    alias, view, first = array[1:], tensors[0][0], tensors[0]
    first.zero_()
    array[:] = 0
    tensors[1].requires_grad_(False).zero_()

    state.restore(objects)

    assert view.tolist() == [0, 3]
    assert alias.tolist() == [1, 2, 3]
    assert tensors[0] is first
    assert tensors[1].requires_grad
    assert tensors[1].tolist() == [1, 1]


def test_views_of_one_memory_stay_views(tmp_path: Path) -> None:
    """A flat buffer and the weights in it, as one may train them."""
    flat = torch.arange(6.0)
    objects = {"all": flat, "weights": {"a": flat[:2], "b": flat[2:].view(2, 2)}}
    state = take(tmp_path, objects)
    flat.zero_()

    state.restore(objects)

    assert flat.tolist() == [0, 1, 2, 3, 4, 5]
    flat.add_(10)
    assert objects["weights"]["b"].tolist() == [[12, 13], [14, 15]]  # type: ignore[index]


def test_views_apart_from_each_other_stay_views(tmp_path: Path) -> None:
    flat = torch.arange(6.0)
    parts = {"a": flat[:2], "b": flat[2:].view(2, 2)}
    state = take(tmp_path, {"parts": parts})
    flat.zero_()

    state.restore({"parts": parts})

    assert flat.tolist() == [0, 1, 2, 3, 4, 5]


def test_copies_of_parts_do_not_become_parts(tmp_path: Path) -> None:
    flat, best = torch.arange(4.0), [torch.full((2,), 7.0)]
    state = take(tmp_path, {"best": best, "flat": flat})
    best[0] = flat[2:]

    state.restore({"best": best, "flat": flat})

    assert flat.tolist() == [0, 1, 2, 3]
    assert best[0].tolist() == [7, 7]


def test_a_copy_that_was_equal_is_none_of_the_weights_afterwards(tmp_path: Path) -> None:
    """The last epoch was the best one so far; then the script goes on with copies."""
    net = nn.Linear(2, 1)
    best = {"weight": net.weight.detach().clone()}
    state = take(tmp_path, {"net": net, "best": best})
    best["weight"] = net.weight.detach()

    state.restore({"net": net, "best": best})

    with torch.no_grad():
        net.weight.zero_()
    assert best["weight"].any()


def test_copies_of_weights_do_not_become_the_weights(tmp_path: Path) -> None:
    """The best weights so far were a copy when they were taken, and are the weights now."""
    net = nn.Linear(2, 1)
    best = {"weight": torch.full((1, 2), 7.0)}
    state = take(tmp_path, {"net": net, "best": best})
    weight = net.weight.detach().clone()
    best["weight"] = net.weight.detach()

    state.restore({"net": net, "best": best})

    assert torch.equal(net.weight, weight)
    assert best["weight"].tolist() == [[7, 7]]


def test_who_shares_a_parameter_sees_it_restored(tmp_path: Path) -> None:
    net = network()
    shared = list(net.parameters())
    optimizer = optim.SGD(shared, lr=0.1)
    objects = {"shared": shared, "optimizer": optimizer, "net": net}
    state = take(tmp_path, objects)
    before, parameters = full(net), list(net.parameters())
    with torch.no_grad():
        for parameter in parameters:
            parameter.zero_()

    state.restore(objects)

    assert full(net) == before
    assert all(a is b for a, b in zip(shared, net.parameters(), strict=True))
    assert optimizer.param_groups[0]["params"][0] is net[0].weight


def test_objects_of_own_classes_keep_what_they_hold(tmp_path: Path) -> None:
    tracker = Tracker(0.9, [1], torch.ones(2))
    state = take(tmp_path, {"tracker": tracker, "list": [tracker, Tracker(0.1)]})
    rows, weights = tracker.rows, tracker.weights
    rows += [2, 3]
    weights.zero_()
    tracker.best = 0.0
    others: list[Any] = []

    state.restore({"tracker": tracker, "list": others})

    assert (tracker.best, rows, weights.tolist()) == (0.9, [1], [1, 1])
    assert tracker.rows is rows
    assert tracker.weights is weights
    assert others == [tracker, Tracker(0.1)]
    assert others[0] is tracker


@pytest.mark.parametrize("kind", ["random", "torch", "numpy", "state"])
def test_random_generators_are_set(tmp_path: Path, kind: str) -> None:
    made: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        "random": (random.Random(1), lambda g: g.random()),
        "torch": (torch.Generator().manual_seed(1), lambda g: torch.rand(2, generator=g).tolist()),
        "numpy": (np.random.default_rng(1), lambda g: g.random()),
        "state": (np.random.RandomState(1), lambda g: g.random_sample()),
    }
    generator, draw = made[kind]
    state = take(tmp_path, {"it": generator})
    expected = draw(generator)
    state.restore({"it": generator})
    assert draw(generator) == expected


def test_the_process_draws_the_same_numbers_again(tmp_path: Path) -> None:
    def draw() -> list[float]:
        return [random.random(), np.random.rand(), torch.rand(1).item()]

    state = take(tmp_path, {"rows": [1]})
    expected = draw()
    assert state.restore({}) == []
    assert draw() != expected
    state.restore({}, with_rng=True)
    assert draw() == expected


# --- modules ----------------------------------------------------------------------------------


def test_a_module_takes_all_that_it_had(tmp_path: Path) -> None:
    net, other = network(), network(1)
    net.train()[1].eval()
    net(torch.rand(5, 4)).sum().backward()
    other.eval().requires_grad_(True)
    state = take(tmp_path, {"net": net}, gradients=True)

    state.restore({"net": other})

    assert full(other) == full(net)


def test_a_lazy_module_takes_the_weights_it_has_not_got(tmp_path: Path) -> None:
    net = nn.LazyLinear(2)
    net(torch.rand(1, 3))
    state = take(tmp_path, {"net": net})
    other = nn.LazyLinear(2)
    state.restore({"net": other})
    assert torch.equal(other.weight, net.weight)


def test_a_module_that_was_lazy_still_is_named(tmp_path: Path) -> None:
    net = nn.LazyLinear(2)
    state = take(tmp_path, {"net": net})
    assert any("uninitialized" in why for why in state.missing.values())
    net(torch.rand(1, 3))
    before = full(net)
    with pytest.raises(RestoreError, match="net"):
        state.restore({"net": net})
    assert full(net) == before


class Extra(nn.Module):  # type: ignore[misc]
    """Saves something of its own, and reads what older versions of it saved."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.extra = nn.Parameter(torch.ones(2)), Tracker()
        self.history: Any = None

    def get_extra_state(self) -> Any:
        return self.history

    def set_extra_state(self, state: Any) -> None:
        self.history = state

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
        if metadata.get("version", 1) < 2:
            state[f"{prefix}weight"] = state[f"{prefix}weight"] * 100
        super()._load_from_state_dict(state, prefix, metadata, *rest)


@pytest.mark.parametrize("history", [None, [1, 2], torch.ones(3), Tracker(0.5)], ids=str)
def test_the_extra_state_of_a_module(tmp_path: Path, history: Any) -> None:
    net, other = Extra(), Extra()
    net.history = history
    state = take(tmp_path, {"net": net})

    state.restore({"net": other})

    assert type(other.history) is type(history)
    assert str(other.history) == str(history)


def test_the_version_of_a_module_is_known(tmp_path: Path) -> None:
    """Its own code reads states of older versions differently."""
    net = Extra()
    take(tmp_path, {"net": net}).restore({"net": net})
    assert net.weight.tolist() == [1, 1]


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:Sparse invariant")
@pytest.mark.parametrize("persistent", [True, False])
def test_a_buffer_that_was_not_captured_stays_as_it_is(tmp_path: Path, persistent: bool) -> None:
    net = nn.Linear(2, 2)
    graph = torch.eye(2).to_sparse_csr()
    net.register_buffer("graph", graph, persistent=persistent)
    state = take(tmp_path, {"net": net})
    assert list(state.missing) == ["net.graph"]
    weight = net.weight.detach().clone()
    with torch.no_grad():
        net.weight.zero_()

    state.restore({"net": net})

    assert torch.equal(net.weight, weight)
    assert net.graph is graph


@pytest.mark.parametrize("registered", [True, False])
def test_an_unsaved_buffer_that_is_made_while_training_is_there_again(
    tmp_path: Path, registered: bool
) -> None:
    net, other = nn.Linear(2, 2), nn.Linear(2, 2)
    net.register_buffer("cache", torch.ones(5), persistent=False)
    if registered:
        other.register_buffer("cache", None, persistent=False)
    take(tmp_path, {"net": net}).restore({"net": other})
    assert other.cache.tolist() == [1] * 5
    assert list(other.state_dict()) == ["weight", "bias"]


def test_a_lazy_module_stays_lazy(tmp_path: Path) -> None:
    state = take(tmp_path, {"net": nn.Sequential(nn.Linear(1, 2), nn.LazyLinear(2))})
    net = nn.Sequential(nn.Linear(1, 2), nn.LazyLinear(2))
    state.restore({"net": net})
    assert torch.equal(net[0].weight, state["net"]["0.weight"])
    assert net[1].has_uninitialized_params()


def test_a_state_that_is_read_knows_the_version_of_its_module(tmp_path: Path) -> None:
    net = Extra()
    net.load_state_dict(take(tmp_path, {"net": net})["net"])
    assert net.weight.tolist() == [1, 1]


def test_an_unsaved_buffer_that_grew_is_restored_or_refused(tmp_path: Path) -> None:
    def make() -> Any:
        net = nn.Linear(2, 2)
        net.register_buffer("cache", torch.zeros(1), persistent=False)
        return net

    net = make()
    net.cache = torch.ones(5)
    state, other = take(tmp_path, {"net": net}), make()
    try:
        state.restore({"net": other})
    except RestoreError:
        return
    assert other.cache.tolist() == [1] * 5


# --- training goes on -------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "Adam": lambda p: optim.Adam(p, lr=0.01),
    "momentum": lambda p: optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "AdamW amsgrad": lambda p: optim.AdamW(p, lr=0.01, amsgrad=True),
    "foreach": lambda p: optim.Adam(p, lr=0.01, foreach=True),
    "fused": lambda p: optim.AdamW(p, lr=0.01, fused=True),
    "tensor rate": lambda p: optim.Adam(p, lr=torch.tensor(0.01), capturable=False),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.01),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.01, centered=True),
    "LBFGS": lambda p: optim.LBFGS(list(p), lr=0.1, max_iter=3, history_size=3),
}
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda epoch: 0.9**epoch),
    "StepLR": lambda o: schedulers.StepLR(o, 2, 0.5),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 3),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=30),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.001, 0.1, scale_fn=lambda x: 0.5, cycle_momentum=False),
    "SequentialLR": lambda o: schedulers.SequentialLR(o, [schedulers.ConstantLR(o), schedulers.ExponentialLR(o, 0.9)], [3]),
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler([schedulers.ConstantLR(o), schedulers.StepLR(o, 2)], o),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=0),
    "SWALR": lambda o: optim.swa_utils.SWALR(o, 0.05, 4),
}  # fmt: skip


def training(
    optimizer: str, scheduler: str, seed: int
) -> tuple[dict[str, Any], Callable[[], float]]:
    """A model with all around it, and a step."""
    net = network(seed).train()
    scale = torch.ones(1, requires_grad=True)  # a parameter of no module
    made = OPTIMIZERS[optimizer]([*(p for p in net.parameters() if p.requires_grad), scale])
    if optimizer in ("momentum", "Adagrad"):
        made.add_param_group({"params": [torch.full((2,), 1.0, requires_grad=True)], "lr": 0.5})
    objects = {
        **{"net": net, "optimizer": made, "scheduler": SCHEDULERS[scheduler](made)},
        "average": optim.swa_utils.AveragedModel(net),
        "scaler": torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2),
    }
    if seed:
        step_of(objects, scale)()
    return objects, step_of(objects, scale)


def step_of(objects: dict[str, Any], scale: Any) -> Callable[[], float]:
    optimizer, scheduler, scaler = (objects[key] for key in ("optimizer", "scheduler", "scaler"))

    def loss_of(x: Any) -> Any:
        extra = sum(p.square().sum() for p in optimizer.param_groups[-1]["params"])
        return (objects["net"](x) * scale - x.sum(1, keepdim=True)).square().mean() + extra

    def step() -> float:
        x = torch.rand(8, 4)
        optimizer.zero_grad()
        if isinstance(optimizer, optim.LBFGS):

            def closure() -> Any:
                optimizer.zero_grad()
                found = loss_of(x)
                found.backward()
                return found

            loss = optimizer.step(closure)
        else:
            loss = loss_of(x)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        loss = loss.detach()
        objects["average"].update_parameters(objects["net"])
        plateau = isinstance(scheduler, schedulers.ReduceLROnPlateau)
        scheduler.step(*([float(loss)] if plateau else []))
        return float(loss) + float(objects["average"](x).sum().detach())

    return step


WAYS = [(name, "LambdaLR") for name in OPTIMIZERS] + [("momentum", name) for name in SCHEDULERS]


@pytest.mark.filterwarnings(
    "ignore:.*lr_scheduler.step", "ignore:.*SequentialLR", "ignore:.*epoch par"
)
@pytest.mark.parametrize(("optimizer", "scheduler"), WAYS)
def test_training_goes_on_with_the_same_numbers(
    tmp_path: Path, optimizer: str, scheduler: str
) -> None:
    objects, step = training(optimizer, scheduler, 0)
    for _ in range(4):
        step()
    state = take(tmp_path, objects, gradients=True)
    assert state.missing == {}
    expected = [step() for _ in range(4)]

    for names in (objects, {"net", "scheduler", "average", "scaler", "optimizer"}):
        others, go_on = training(optimizer, scheduler, 5)
        state.restore({name: others[name] for name in names}, with_rng=True)
        assert [go_on() for _ in range(4)] == expected
    state.restore(objects, with_rng=True)
    assert [step() for _ in range(4)] == expected


def test_a_scheduler_brings_its_optimizer(tmp_path: Path) -> None:
    parameter = torch.ones(2, requires_grad=True)
    optimizer = optim.SGD([parameter], lr=0.5, momentum=0.9)
    scheduler = schedulers.StepLR(optimizer, 1)
    state = take(tmp_path, {"scheduler": scheduler})
    with torch.no_grad():
        parameter.zero_()
    optimizer.param_groups[0]["lr"] = 9.0
    state.restore({"scheduler": scheduler})
    assert (parameter.tolist(), optimizer.param_groups[0]["lr"]) == ([1, 1], 0.5)


def test_a_tensor_of_the_optimizer_stays_shared(tmp_path: Path) -> None:
    parameter = torch.ones(2, requires_grad=True)
    optimizer = optim.SGD([parameter], lr=0.5, momentum=0.9)
    parameter.sum().backward()
    optimizer.step()
    momentum = optimizer.state[parameter]["momentum_buffer"]
    objects = {"optimizer": optimizer, "momentum": [momentum]}
    take(tmp_path, objects).restore(objects)
    assert objects["momentum"][0] is optimizer.state[parameter]["momentum_buffer"]


@pytest.mark.parametrize("first", ["optimizer", "momentum"])
def test_a_tensor_that_a_new_optimizer_has_not_got_yet_is_shared(
    tmp_path: Path, first: str
) -> None:
    def make() -> Any:
        parameter = torch.ones(2, requires_grad=True)
        return parameter, optim.Adam([parameter])

    parameter, optimizer = make()
    parameter.sum().backward()
    optimizer.step()
    momentum = optimizer.state[parameter]["exp_avg"]
    objects = {"optimizer": optimizer, "momentum": [momentum]}
    state = take(tmp_path, {first: objects.pop(first), **objects})

    parameter, optimizer = make()
    held: list[Any] = []
    state.restore({"optimizer": optimizer, "momentum": held})

    assert held[0] is optimizer.state[parameter]["exp_avg"]
    assert torch.equal(held[0], momentum)


def test_gradients_that_were_none_are_none_again(tmp_path: Path) -> None:
    weights = [torch.ones(2, requires_grad=True), nn.Parameter(torch.ones(2))]
    weights[1].sum().backward()
    state = take(tmp_path, {"weights": weights}, gradients=True)
    sum(w.sum() for w in weights).backward()  # type: ignore[union-attr]
    new: list[Any] = []
    state.restore({"weights": weights})
    state.restore({"weights": new})
    for found in (weights, new, state["weights"]):
        assert found[0].grad is None
        assert found[1].grad.tolist() == [1, 1]


def test_gradients_of_plain_tensors_are_restored(tmp_path: Path) -> None:
    weights = torch.ones(2, requires_grad=True)
    weights.sum().backward()
    state = take(tmp_path, {"weights": weights}, gradients=True)
    weights.sum().backward()
    state.restore({"weights": weights})
    assert weights.grad is not None
    assert weights.grad.tolist() == [1, 1]


def test_a_loader_gives_the_same_order_again(tmp_path: Path) -> None:
    def make(seed: int) -> Any:
        generator = torch.Generator().manual_seed(seed)
        sampler = torch.utils.data.RandomSampler(range(20), generator=generator)
        return torch.utils.data.DataLoader(range(20), 4, sampler=sampler, generator=generator)

    loader, other = make(1), make(2)
    state = take(tmp_path, {"loader": loader})
    expected = [batch.tolist() for batch in loader]
    state.restore({"loader": other})
    assert [batch.tolist() for batch in other] == expected
    assert other.sampler.generator is other.generator


# --- states of others -------------------------------------------------------------------------


def test_an_object_with_a_state_of_its_own(tmp_path: Path) -> None:
    meter = Meter(total=1.5, tracker=Tracker(0.5, [1]))
    state = take(tmp_path, {"meter": meter})
    other = Meter(total=0.0, tracker=Tracker())
    state.restore({"meter": other})
    assert other.total == 1.5  # type: ignore[attr-defined]
    assert other.tracker == Tracker(0.5, [1])  # type: ignore[attr-defined]


class Wrapped:
    """Knows no state itself: what it wraps does."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


def test_an_object_that_hands_on_the_state_of_what_it_wraps(tmp_path: Path) -> None:
    state = take(tmp_path, {"net": Wrapped(nn.Linear(2, 2))})
    other = Wrapped(nn.Linear(2, 2))

    state.restore({"net": other})

    assert torch.equal(other.inner.weight, state["net"]["weight"])


def test_what_a_state_misses_stays_as_it_is(tmp_path: Path) -> None:
    meter = Meter(total=1.5, scale=lambda x: 2 * x)
    state = take(tmp_path, {"meter": meter})
    assert list(state.missing) == ["meter.scale"]
    other = Meter(total=0.0, scale=lambda x: 2 * x)
    state.restore({"meter": other})
    assert other.total == 1.5  # type: ignore[attr-defined]
    assert other.scale(4) == 8  # type: ignore[attr-defined]


class Scaled:
    """Takes a copy of what it is given."""

    def __init__(self, weights: Any) -> None:
        self.weights = weights

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = state["weights"] * 1


@pytest.mark.parametrize("together", [True, False])
def test_a_declared_object_in_the_state_of_another(tmp_path: Path, together: bool) -> None:
    weights = np.ones(3)
    scaled = Scaled(weights)
    state = take(tmp_path, {"scaled": scaled, "weights": weights})
    weights[:] = 5
    scaled.weights = weights

    state.restore({"scaled": scaled} | ({"weights": weights} if together else {}))

    assert scaled.weights.tolist() == [1, 1, 1]
    assert weights.tolist() == ([1] * 3 if together else [5] * 3)
    assert state["scaled"]["weights"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("declared", [(), ("net",)])
@pytest.mark.parametrize("given", [(), ("net",)])
def test_a_module_in_the_state_of_another_stays_the_module(
    tmp_path: Path, declared: tuple[str, ...], given: tuple[str, ...]
) -> None:
    net = nn.Linear(2, 2)
    meter = Meter(net=net, total=1)
    state = take(tmp_path, {"meter": meter} | dict.fromkeys(declared, net))
    other, there = nn.Linear(2, 2), set(given) & set(declared)

    state.restore({"meter": (found := Meter(net=other, total=2))} | dict.fromkeys(there, other))

    assert vars(found) == {"net": other, "total": 1}
    assert torch.equal(other.weight, net.weight)


def test_objects_that_hold_each_other_in_their_states(tmp_path: Path) -> None:
    for declared in (("one",), ("one", "two")):
        objects = {"one": Meter(n=1), "two": Meter(n=2)}
        one, two = objects["one"], objects["two"]
        one.other, two.other = two, one  # type: ignore[attr-defined]
        state = take(tmp_path, {name: objects[name] for name in declared})
        for given in (("one",), declared):
            one.n = two.n = 0  # type: ignore[attr-defined]
            state.restore({name: objects[name] for name in given})
            assert (vars(one), vars(two)) == ({"n": 1, "other": two}, {"n": 2, "other": one})
        assert state["one"]["other"]["n"] == 2


class Trainer:
    """Pickled, since it says how."""

    def __init__(self, net: Any) -> None:
        self.net, self.steps = net, 3

    def __getstate__(self) -> Any:
        return vars(self)


def test_a_pickled_object_takes_its_attributes(tmp_path: Path) -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    x, y = np.random.RandomState(0).rand(9, 2), np.arange(9) % 2
    model = linear.SGDClassifier(random_state=0).fit(x, y)
    state = take(tmp_path, {"model": model})
    expected = model.coef_.copy()
    model.fit(x, 1 - y)
    state.restore({"model": model})
    assert (model.coef_ == expected).all()


def test_a_pickled_object_keeps_its_module(tmp_path: Path) -> None:
    net = nn.Linear(1, 1)
    trainer = Trainer(net)
    state = take(tmp_path, {"net": net, "trainer": trainer})
    state.restore({"net": net, "trainer": trainer})
    assert trainer.net is net
    try:
        state.restore({"trainer": trainer})
    except RestoreError as error:
        assert "net" in str(error)
    assert trainer.net is net


# --- what does not fit ------------------------------------------------------------------------


class Other(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)


def sgd(*shapes: tuple[int, ...]) -> Any:
    return optim.SGD([torch.zeros(shape) for shape in shapes], lr=0.1)


UNFIT: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    "shape": (lambda: nn.Linear(2, 3), lambda: nn.Linear(2, 4), r"weight: \(3, 2\), not \(4, 2\)"),
    "architecture": (lambda: nn.Linear(2, 3), Other, "the model has no weight"),
    "module and list": (lambda: nn.Linear(2, 3), list, "state of a .*Linear.*here is a list"),
    "tensor": (lambda: torch.ones(2), lambda: torch.ones(3), r"\(2,\) of float32.*\(3,\)"),
    "dtype": (lambda: torch.ones(2), lambda: torch.ones(2).half(), "float32.*float16"),
    "array": (lambda: np.ones(2), lambda: np.ones((2, 1)), r"\(2,\) of float64.*\(2, 1\)"),
    "number": (lambda: 1.5, lambda: 2.5, "float"),
    "list": (lambda: [1], lambda: {"a": 1}, "a list .* a dict"),
    "class": (lambda: Tracker(), lambda: Meter(), "Tracker.*Meter"),
    "set": (lambda: {1}, lambda: [1], "a set .* a list"),
    "tuple": (lambda: (1, 2), lambda: (1, 3), "tuple"),
    "queue": (lambda: deque([1], 3), lambda: deque([1], 4), "deque"),
    "generator": (lambda: random.Random(1), lambda: np.random.default_rng(1), "Random"),
    "bits": (
        *(lambda: np.random.default_rng(1), lambda: np.random.Generator(np.random.SFC64(1))),
        "Generator",
    ),
    "optimizer": (lambda: sgd((2,)), lambda: optim.Adam([torch.zeros(2)]), "SGD.*Adam"),
    "groups": (lambda: sgd((2,), (3,)), lambda: sgd((2,)), r"groups of \[2\].*\[1\]"),
    "group shape": (lambda: sgd((2,)), lambda: sgd((3,)), r"shape \(2,\) .* \(3,\)"),
    "scheduler": (
        lambda: schedulers.StepLR(sgd((2,)), 2),
        lambda: schedulers.ExponentialLR(sgd((2,)), 0.9),
        "StepLR.*ExponentialLR",
    ),
    "loader": (lambda: torch.utils.data.DataLoader([1]), list, "DataLoader.*list"),
    "lock": (lambda: (i for i in ()), lambda: [1], "not in this checkpoint"),
    "broken": (lambda: Meter(n=1), lambda: Never(n=2), "NotImplementedError"),
}


def picture(objects: dict[str, Any]) -> list[Any]:
    net, optimizer, meter = objects["net"], objects["optimizer"], objects["meter"]
    momentum = [{k: str(v) for k, v in s.items()} for s in optimizer.state.values()]
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    return copy.deepcopy(
        [
            *(full(net), momentum, groups, vars(meter), vars(objects["tracker"])),
            *(objects["rows"], objects["array"].tolist(), objects["tensor"].tolist()),
        ]
    )


def several(seed: int) -> dict[str, Any]:
    net = network(seed)
    optimizer = optim.SGD(net.parameters(), lr=0.1 + seed, momentum=0.9)
    net(torch.rand(3, 4)).sum().backward()
    optimizer.step()
    return {
        **{"net": net, "optimizer": optimizer, "meter": Meter(total=seed, rows=[seed])},
        **{"rows": [seed, [seed]], "array": np.full(3, seed), "tensor": torch.full((2,), seed)},
        "tracker": Tracker(seed, [seed]),
    }


@pytest.mark.parametrize("where", ["a", "z"])
@pytest.mark.parametrize("kind", UNFIT)
def test_where_one_does_not_fit_nothing_changes(tmp_path: Path, kind: str, where: str) -> None:
    make, other, message = UNFIT[kind]
    state = take(tmp_path, several(1) | {where: make()})
    objects = several(2)
    before = picture(objects)
    both = {where: other(), **objects} if where == "a" else {**objects, where: other()}
    drawn = torch.get_rng_state()

    with pytest.raises(RestoreError, match=message) as caught:
        state.restore(both, with_rng=True)

    assert str(caught.value).startswith(where)
    assert picture(objects) == before
    assert torch.equal(torch.get_rng_state(), drawn)


def test_who_cannot_be_set_back_is_named(tmp_path: Path) -> None:
    state = take(tmp_path, {"good": Meter(n=1), "bad": Meter(n=1)})
    good, bad = Meter(n=2), Never(n=2)
    with pytest.raises(RestoreError, match=r"^bad did not take .*; bad could not be set back$"):
        state.restore({"good": good, "bad": bad})
    assert vars(good) == {"n": 2}


def test_who_fails_half_way_is_set_back_with_all_others(tmp_path: Path) -> None:
    state = take(tmp_path, several(1) | {"last": Meter(n=1, rows=[1])})
    objects, last = several(2), Meter(n=2, rows=[2])
    before = picture(objects)
    Meter.broken = True
    with pytest.raises(RestoreError, match=r"did not take the state.*half-way"):
        state.restore({"last": last, **objects})
    assert picture(objects) == before
    assert vars(last) == {"n": 2, "rows": [2]}


@pytest.mark.parametrize(
    "broken",
    [{"random": 5}, {"numpy": {"t": "map", "of": {}}}, {"torch": None}, {"x": 1}, {"cuda:x": 1}],
    ids=str,
)
def test_random_states_that_cannot_be_set_change_nothing(
    tmp_path: Path, broken: dict[str, Any]
) -> None:
    rows = [1]
    found = take(tmp_path, {"rows": rows})
    state = State(replace(found.manifest, rng=broken), store_of(found))
    rows[:] = [2]
    with pytest.raises(FlorError):
        state.restore({"rows": rows}, with_rng=True)
    assert rows == [2]


def test_a_name_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    state = take(tmp_path, {"rows": [1]}, variables={"best": 0.5})
    with pytest.raises(NoCheckpoint, match=r"no 'net'; it holds best, rows"):
        reread(state).restore({"net": []})


def test_the_global_generator_of_numpy_may_be_another(tmp_path: Path) -> None:
    own = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(3))
    try:
        state = take(tmp_path, {"rows": [1]})
        expected = np.random.rand()
        state.restore({}, with_rng=True)
        assert np.random.rand() == expected
    finally:
        np.random.set_bit_generator(own)
