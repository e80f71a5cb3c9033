"""Whatever a checkpoint's files hold: no code runs, and each failure is one of flor's own."""

from __future__ import annotations

import copy
import json
import os
import random
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flor.checkpoint import signing
from flor.checkpoint.manifest import Manifest
from flor.checkpoint.state import State
from flor.errors import DamagedCheckpoint, FlorError, UntrustedPickle
from flor.objects import ObjectStore
from tests.checkpointing import changed, holding, reread, store_of, take

torch = pytest.importorskip("torch")
nn = torch.nn


@pytest.fixture(autouse=True)
def own_key(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


class Box:
    """Of the user's own."""

    def __init__(self, content: Any) -> None:
        self.content = content


class Kept:
    """An object with a state of its own."""

    def __init__(self) -> None:
        self.state: Any = {"count": 1, "rows": [1.5]}

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = {"count": state["count"], "rows": state["rows"]}


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Whatever takes longer fails."""

    def stop(*_: object) -> None:
        pytest.fail(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# --- pickles ----------------------------------------------------------------------------------


def test_pickles_of_this_user_are_read(tmp_path: Path) -> None:
    take(tmp_path, variables={"it": Payload(tmp_path / "made")})["it"]
    assert (tmp_path / "made").exists()
    assert signing.key_path().stat().st_mode & 0o077 == 0


def foreign(folder: Path, monkeypatch: pytest.MonkeyPatch, **objects: Any) -> State:
    """A checkpoint that another user took."""
    with monkeypatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "elsewhere"))
        return take(folder, objects)


def test_pickles_of_others_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = foreign(tmp_path, monkeypatch, it=[Payload(tmp_path / "made")], other=[1])

    for _ in range(2):
        with pytest.raises(UntrustedPickle, match="trust=True"):
            state["it"]
    with pytest.raises(UntrustedPickle):
        state.restore({"it": [], "other": []})

    assert not (tmp_path / "made").exists()
    assert state["other"] == [1]
    reread(state, trust=True)["it"]
    assert (tmp_path / "made").exists()


def test_what_holds_an_untrusted_pickle_is_refused_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shared, so that it is found again."""
    rows = [1, Payload(tmp_path / "made")]
    state = foreign(tmp_path, monkeypatch, it=[rows, rows])
    for _ in range(2):
        with pytest.raises(UntrustedPickle):
            state["it"]


def test_nothing_is_restored_where_one_pickle_is_untrusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, net = [1, 2], nn.Linear(2, 2)
    state = foreign(tmp_path, monkeypatch, rows=rows, net=net, bad=[Payload(tmp_path / "made")])
    rows.append(3)
    weight = net.weight.detach().clone()
    with torch.no_grad():
        net.weight.add_(1)

    with pytest.raises(UntrustedPickle):
        state.restore({"rows": rows, "net": net, "bad": []})

    assert rows == [1, 2, 3]
    assert torch.equal(net.weight, weight + 1)


def test_without_a_key_no_pickle_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    state = take(tmp_path, variables={"it": Payload(tmp_path / "made")})
    assert state.manifest.signature is None
    with pytest.raises(UntrustedPickle):
        state["it"]


def tampered(state: State, own: State, change: Callable[[Any], object]) -> State:
    """A foreign checkpoint with the signature of the user's own, and another change."""

    def both(data: Any) -> None:
        data["signature"] = own.manifest.signature
        change(data)

    store = store_of(state)
    for digest in own.manifest.digests:
        store.put(store_of(own).get(digest))
    return changed(state, both)


def test_a_signature_is_good_for_its_own_pickles_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = take(tmp_path / "own", {"it": np.array([None, "x"])})
    state = foreign(tmp_path / "foreign", monkeypatch, it=Payload(tmp_path / "made"))
    (number,) = own.manifest.pickles
    leaf = list(own.manifest.leaves[number])
    here = len(state.manifest.leaves)

    def claim(pickles: list[Any]) -> Callable[[Any], object]:
        return lambda data: data.update(pickles=pickles, leaves=[*data["leaves"], leaf])

    assert holding(own, it=own.manifest.objects["it"])["it"].tolist() == [None, "x"]
    bad = state.manifest.pickles[0]
    for pickles in ([bad], [here], [here, bad], [], [here, here], [1000], [-1], ["x"], [None]):
        with pytest.raises((UntrustedPickle, DamagedCheckpoint)):
            tampered(state, own, claim(pickles))["it"]
    assert not (tmp_path / "made").exists()


def test_a_pickle_that_cannot_be_read_is_damage(tmp_path: Path) -> None:
    state = take(tmp_path, {"it": [1], "content": b"no pickle"})
    leaf = state.manifest.objects["content"]["leaf"]
    node = {"t": "pickle", "type": "a.B", "leaf": leaf, "refs": []}
    with pytest.raises(DamagedCheckpoint, match=r"a\.B cannot be read here"):
        State(replace(state.manifest, objects={"it": node}), store_of(state), trust=True)["it"]


# --- damaged files ----------------------------------------------------------------------------

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "first bit": lambda content: bytes([content[0] ^ 1]) + content[1:],
    "middle": lambda c: c[: len(c) // 2] + bytes([c[len(c) // 2] ^ 128]) + c[len(c) // 2 + 1 :],
    "torn": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "zeros": lambda content: bytes(len(content)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_of_any_object_is_named(tmp_path: Path, damage: str) -> None:
    net = nn.Sequential(nn.Linear(300, 300), nn.Linear(200, 100))
    state = take(tmp_path, {"net": net}, variables={"best": [0.5] * 100})
    before = copy.deepcopy(net.state_dict())
    with torch.no_grad():
        net[0].weight.zero_()
        before["0.weight"].zero_()
    assert len(state.manifest.digests) == 3

    for digest in state.manifest.digests:
        path = store_of(state).path(digest)
        content = path.read_bytes()
        path.write_bytes(DAMAGE[damage](content))
        with pytest.raises(DamagedCheckpoint, match=str(path)):
            reread(state).restore({"net": net})
        path.write_bytes(content)

    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    reread(state).restore({"net": net})
    assert net[0].weight.any()


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    state = take(tmp_path, {"it": torch.ones(100_000)})
    for digest in state.manifest.digests:
        path = store_of(state).path(digest)
        hidden = path.rename(tmp_path / "hidden")
        with pytest.raises(DamagedCheckpoint, match=digest):
            reread(state).check()
        path.mkdir()
        with pytest.raises(DamagedCheckpoint, match=str(path)):
            reread(state).check()
        path.rmdir()
        hidden.rename(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    state = take(tmp_path, {"it": [1.5] * 100})
    (digest,) = state.manifest.digests
    path = store_of(state).path(digest)
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(DamagedCheckpoint):
        reread(state)["it"]


# --- nodes that nobody wrote ------------------------------------------------------------------


@pytest.fixture(scope="module")
def bytes_of_8(tmp_path_factory: pytest.TempPathFactory) -> State:
    """Leaf 0 is eight bytes."""
    state = take(tmp_path_factory.mktemp("eight"), {"it": torch.ones(2)})
    leaves = [leaf for leaf in state.manifest.leaves if leaf.size_bytes == 8]
    return State(replace(state.manifest, leaves=tuple(leaves)), store_of(state))


TENSOR = {"t": "tensor", "dtype": "float32", "shape": [2], "leaf": 0}
ARRAY = {"t": "array", "dtype": "<f4", "shape": [2], "order": "C", "leaf": 0}
HOSTILE: list[Any] = [
    *({}, {"t": None}, {"t": []}, {"t": {}}, {"t": "nothing"}, {"t": "__init__"}, {"t": "list"}),
    *({"t": "list", "items": 5}, {"t": "list", "items": [{}]}, {"t": "map"}, {"t": "map", "of": 1}),
    *({"t": "map", "type": "Popen", "of": {}}, {"t": "map", "type": "dict", "of": {}}),
    *({"t": "map", "type": "defaultdict", "factory": "exec", "of": {}}, {"t": "dict", "items": [1]}),
    *({"t": "dict", "items": [[{"t": "list", "items": []}, 1]]}, {"t": "set", "items": [{"t": "map", "of": {}}]}),
    *({"t": "deque", "maxlen": -1, "items": []}, {"t": "deque", "items": []}),
    *({"t": "ref"}, {"t": "ref", "to": 7}, {"t": "ref", "to": []}, {"t": "ref", "to": 1, "id": 1}),
    *({"t": "list", "id": [], "items": []}, {"t": "tuple", "id": 1, "items": [{"t": "ref", "to": 1}]}),
    *({"t": "int", "hex": "x"}, {"t": "int", "hex": 5}, {"t": "int"}, {"t": "complex", "parts": [1, 2, 3]}),
    *({"t": "range", "items": [0, 9, 0]}, {"t": "range", "items": []}, {"t": "bytes", "leaf": 0}),
    *({"t": "bytes", "type": "bytes", "leaf": leaf} for leaf in (1, -1, 10**30, "0", None, [], 0.5)),
    *({"t": "floats", "leaf": None}, {"t": "numbers", "dtype": "O", "leaf": 0}, {"t": "declared"}),
    *({"t": "number", "dtype": "O", "hex": "00" * 8}, {"t": "number", "dtype": "<f4", "hex": ""}),
    *({"t": "instance"}, {"t": "instance", "type": "os.system"}, {"t": "instance", "type": 5, "of": {}}),
    *({"t": "missing"}, {"t": "state"}, {"t": "state", "type": "a"}, {"t": "loader"}, {"t": "pickle"}),
    *({"t": "pickle", "leaf": 0, "type": "a", "refs": []}, {"t": "pickle", "leaf": 9, "type": "a", "refs": []}),
    *({**ARRAY, "dtype": kind} for kind in ("O", "x", 5, None, {}, "f4,O", [["a", "O"]], "V0", "S0", "")),
    *({**ARRAY, "shape": shape} for shape in (5, [3], ["2"], [10**30], [[2]])),
    *({**ARRAY, "order": "K"}, {"t": "dtype", "text": "os.system"}),
    *({**TENSOR, "dtype": kind} for kind in ("load", "float99", 5, None, "float64.__class__", [])),
    *({**TENSOR, "shape": shape} for shape in (5, [3], ["2"], None, [10**30], [[2]], [2.5])),
    *({**TENSOR, "stride": stride} for stride in ([2], [-1], [], [1, 1], None, [10**18], ["1"])),
    *({**TENSOR, "shape": [2**40], "stride": [0]}, {**TENSOR, "shape": [1], "stride": [1]}),
    *({**TENSOR, "dtype": "int32", "grad": "leaf"}, {**TENSOR, "dtype": "int32", "grad": 1, "type": "Parameter"}),
    *({"t": "meta", "dtype": "float32", "shape": [2**62, 2**62]}, {"t": "meta", "dtype": "save", "shape": []}),
    *({"t": "sparse", "of": [], "shape": [1]}, {"t": "sparse", "of": [TENSOR, TENSOR], "shape": [1]}),
    {"t": "sparse", "of": [{**TENSOR, "dtype": "int64", "shape": [1, 1]}, {**TENSOR, "shape": [2]}], "shape": [2]},
    {"t": "sparse", "of": [{**TENSOR, "dtype": "int64", "shape": [1, 1]}, {**TENSOR, "dtype": "float64", "shape": [1]}], "shape": [2]},
    *({"t": "torch", "type": "dtype", "text": "torch.load"}, {"t": "torch", "type": "Size", "items": ["x"]}),
    *({"t": "torch", "type": "device", "text": "nowhere"}, {"t": "torch", "type": "device", "text": 2.5}),
    *({"t": "generator", "library": name, "state": state} for name in ("random", "torch", "numpy.Generator", "numpy.RandomState", "os", []) for state in (None, 5, TENSOR, {"t": "map", "of": {}}, {"t": "map", "of": {"bit_generator": "seed"}})),
    *({"t": "generator", "library": "torch", "device": name, "state": TENSOR} for name in ("cpu", "cuda:99", "meta", "mps", "", 5)),
]  # fmt: skip


HARMLESS: list[Any] = [  # read as something, by whatever name
    *({**ARRAY, "shape": shape} for shape in ([-2], None)),
    *({"t": "dtype", "text": {}}, {"t": "sparse", "of": [], "shape": [1]}),
]


def only_flor(run: Callable[[], object]) -> None:
    with suppress(FlorError):
        run()


@pytest.mark.parametrize("node", HOSTILE + HARMLESS, ids=lambda node: json.dumps(node)[:70])
def test_hostile_nodes_are_damage(bytes_of_8: State, node: Any) -> None:
    nothing = ("missing", "loader", "instance", "torch", "sparse", "numbers", "generator")
    state = holding(bytes_of_8, it=node, around={"t": "list", "items": [1, node]})

    with within(10):
        only_flor(lambda: state["it"])
        only_flor(lambda: state["around"])
        if node.get("t") not in nothing and "stride" not in node and node not in HARMLESS:
            with pytest.raises((DamagedCheckpoint, UntrustedPickle)):
                reread(state)["it"]


TARGETS: dict[str, Callable[[], Any]] = {
    "list": lambda: [1, [2]],
    "map": lambda: {"a": 1, "b": [2]},
    "tensor": lambda: torch.zeros(2),
    "array": lambda: np.zeros(2, "f4"),
    "net": lambda: nn.Linear(1, 2),
    "optimizer": lambda: torch.optim.SGD([torch.zeros(2)], lr=0.1),
    "box": lambda: Box([1]),
    "kept": Kept,
    "loader": lambda: torch.utils.data.DataLoader([1], generator=torch.Generator()),
    "random": lambda: np.random.default_rng(1),
}


@pytest.mark.parametrize("target", TARGETS)
def test_hostile_nodes_do_not_fit(bytes_of_8: State, target: str) -> None:
    foreign: dict[str, str] = {}
    for node in HOSTILE:
        around = {"t": "list", "items": [node, {"t": "map", "of": {"b": node}}]}
        for it in (node, around):
            try:
                with within(10):
                    reread(holding(bytes_of_8, it=it)).restore({"it": TARGETS[target]()})
            except FlorError:
                pass
            except Exception as error:
                foreign[json.dumps(it)[:90]] = repr(error)[:90]
    assert not foreign


READ_ALL = """
import sys, torch
from dataclasses import replace
from pathlib import Path
from flor.checkpoint.state import State
from flor.errors import FlorError
from tests.checkpointing import holding, take
state = take(Path(sys.argv[1]), {"it": torch.ones(2)})
number = next(n for n, leaf in enumerate(state.manifest.leaves) if leaf.size_bytes == 8)
for name in [name for name, kind in vars(torch).items() if isinstance(kind, torch.dtype)]:
    for shape in ([1], [2], [4], [8], [16]):
        node = {"t": "tensor", "dtype": name, "shape": shape, "leaf": number}
        try:
            found = holding(state, it=node)["it"]
            assert found.element_size() * found.numel() == 8, name
        except FlorError:
            pass
"""


def test_tensors_of_no_type_of_torch_crash_the_process(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", READ_ALL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_tensor_is_not_larger_than_its_bytes(bytes_of_8: State) -> None:
    """Whoever copies it would fill the memory."""
    node = {**TENSOR, "shape": [2**40], "stride": [0]}
    with pytest.raises(DamagedCheckpoint):
        holding(bytes_of_8, it=node)["it"]


@pytest.mark.parametrize("kind", ["MT19937", "Philox"])
def test_a_generator_with_an_impossible_position_is_damage(tmp_path: Path, kind: str) -> None:
    """It would read memory that is not its own."""
    state = take(tmp_path, {"it": np.random.Generator(getattr(np.random, kind)(1))})

    def move(data: Any) -> None:
        of = data["objects"]["it"]["state"]["of"]
        (of["state"]["of"] if kind == "MT19937" else of).update(
            {"pos": 10**6} if kind == "MT19937" else {"buffer_pos": -(10**6)}
        )

    with pytest.raises(DamagedCheckpoint):
        changed(state, move)["it"]


def test_shared_nodes_are_made_once(bytes_of_8: State) -> None:
    """Forty levels of two references each would be a million million lists."""
    nodes = [{"t": "tuple", "id": 0, "items": [1]}]
    for number in range(1, 41):
        refs = [{"t": "ref", "to": number - 1}] * 2
        nodes.append({"t": "tuple", "id": number, "items": refs})
    state = holding(bytes_of_8, it={"t": "list", "items": nodes})
    with within(10):
        assert len(state["it"]) == 41
        reread(state).restore({"it": []})


def test_what_is_nested_without_end_is_damage(bytes_of_8: State) -> None:
    deep: Any = {"t": "list", "items": []}
    for _ in range(400):
        deep = {"t": "list", "items": [deep]}
    state = holding(bytes_of_8, it=deep)
    for run in (lambda: state["it"], lambda: reread(state).restore({"it": []})):
        only_flor(run)
    text = b'{"format": 1, "objects": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(DamagedCheckpoint):
        Manifest.from_bytes(text)


def test_names_can_be_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = foreign(tmp_path, monkeypatch, rows=[1], bad=Payload(tmp_path / "made"))
    assert "rows" in state
    assert "bad" in state
    assert "other" not in state
    assert state.get("other", 7) == 7


# --- documents that nobody wrote --------------------------------------------------------------


def rich(folder: Path) -> tuple[State, Callable[[], dict[str, Any]]]:
    """A checkpoint of all kinds, written by somebody else, and new objects to restore it into."""

    def make() -> dict[str, Any]:
        net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout())
        net.rate = 0.5  # type: ignore[assignment]
        optimizer = torch.optim.Adam(net.parameters())
        net(torch.ones(2, 2)).sum().backward()
        optimizer.step()
        loader = torch.utils.data.DataLoader([1, 2], shuffle=True, generator=torch.Generator())
        rows: list[Any] = [1, "x", 2**70, (1.5, {2}), np.arange(3), np.float32(1)]
        return {
            **{"net": net, "optimizer": optimizer, "loader": loader, "kept": Kept()},
            **{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2), "box": Box(rows)},
            **{"rows": rows, "tensors": [torch.ones(2, 3).T, torch.ones(2)], "deep": {1: {"a": rows}}},
            **{"random": [np.random.default_rng(1), np.random.RandomState(2), torch.Generator()]},
            **{"pickled": [Payload(folder / "made"), 5]},
        }  # fmt: skip

    return take(folder, make(), gradients=True), make


ODD: list[Any] = [
    *(None, True, -1, 0, 3, 10**30, 0.5, float("nan"), [], {}, [[]], "", "x", "O", "float64"),
    *(
        "list",
        "tensor",
        "ref",
        "pickle",
        {"t": "ref", "to": 1},
        {"t": "state", "type": "x", "of": 1},
    ),
]


def places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Where a document can be changed."""
    for key in list(data) if isinstance(data, dict) else range(len(data)):
        yield data, key
        if isinstance(data[key], (dict, list)):
            yield from places(data[key])


def mutated(document: Any, dice: random.Random) -> bytes:
    """The document with something else, nothing, or what belongs elsewhere in some places."""
    for _ in range(dice.randint(1, 3)):
        spots = list(places(document))
        (owner, key), (other, name) = dice.choice(spots), dice.choice(spots)
        choice = dice.random()
        if choice < 0.2:
            del owner[key]
        else:
            owner[key] = copy.deepcopy(dice.choice(ODD) if choice < 0.7 else other[name])
    return json.dumps(document).encode()


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[State, Callable[[], Any], Path]:
    folder = tmp_path_factory.mktemp("rich")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "elsewhere"))
        return (*rich(folder), folder)


def read_and_restore(content: bytes, store: ObjectStore, targets: dict[str, Any]) -> None:
    """All that may be done with a document; what is not flor's error is raised."""
    with suppress(FlorError):
        found = State(Manifest.from_bytes(content), store)
        for name in found:
            only_flor(partial(found.__getitem__, name))
        for name, target in targets.items():
            only_flor(partial(found.restore, {name: target}))
        only_flor(partial(found.restore, targets))


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
@pytest.mark.parametrize("seed", range(8))
def test_changed_documents_run_nothing_and_raise_errors_of_flor(
    sample: tuple[State, Callable[[], Any], Path], seed: int
) -> None:
    state, make, folder = sample
    dice, foreign = random.Random(seed), dict[str, str]()
    for number in range(40):
        content = mutated(json.loads(state.manifest.to_bytes()), dice)
        with within(20):
            try:
                read_and_restore(content, store_of(state), make())
            except Exception as error:
                foreign[repr(error)[:90]] = f"number {number}: {where(error)}"
    assert not (folder / "made").exists()
    assert not foreign


def where(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(changes=st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=3)), min_size=1))
def test_changed_bytes_of_a_document_are_damage_or_another_document(
    sample: tuple[State, Callable[[], Any], Path], changes: list[tuple[int, bytes]]
) -> None:
    content = bytearray(sample[0].manifest.to_bytes())
    for place, piece in changes:
        start = place % len(content)
        content[start : start + 2] = piece
    read_and_restore(bytes(content), store_of(sample[0]), {})
