"""Values go into a checkpoint and come back the same: kind, bytes, and what they share."""

from __future__ import annotations

import enum
import io
import random
import struct
import threading
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flor.checkpoint.decoding import Instance, Lost
from flor.checkpoint.state import State
from tests.checkpointing import reread, take

torch = pytest.importorskip("torch")
nn = torch.nn


@pytest.fixture(autouse=True)
def own_key(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))


def there_and_back(folder: Path, value: Any) -> Any:
    """The value as it is read; nothing of it may be missing."""
    state = take(folder, variables={"value": value})
    assert state.missing == {}
    return reread(state)["value"]


def picture(value: Any, seen: dict[int, int] | None = None) -> Any:
    """All that tells one value from another: types, bits, order, what is the same object."""
    seen = {} if seen is None else seen
    kind = type(value).__name__
    if isinstance(value, (list, dict, set, deque, bytearray)):
        if id(value) in seen:
            return ("seen", seen[id(value)])
        seen[id(value)] = len(seen)
    if isinstance(value, float):
        return (kind, struct.pack("d", value) if value == value else "nan")
    if isinstance(value, complex):
        return (kind, picture(value.real), picture(value.imag))
    if isinstance(value, dict):
        factory = getattr(value, "default_factory", None)
        items = [(picture(k, seen), picture(v, seen)) for k, v in value.items()]
        return (kind, factory, items)
    if isinstance(value, (list, tuple, deque)):
        return (kind, getattr(value, "maxlen", None), [picture(item, seen) for item in value])
    if isinstance(value, (set, frozenset)):
        return (kind, sorted(repr(picture(item)) for item in value))
    if isinstance(value, slice):
        return (kind, [picture(i, seen) for i in (value.start, value.stop, value.step)])
    return (kind, value)


# --- plain data -------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=()), max_size=8)  # lone surrogates too
SCALARS = st.one_of(
    *(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), TEXTS),
    *(st.complex_numbers(), st.binary(max_size=8)),
)
HASHABLE = st.recursive(
    st.one_of(SCALARS, st.builds(range, st.integers(-(2**70), 2**70), st.just(9))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple), st.frozensets(inner, max_size=3)
    ),
    max_leaves=5,
)
FACTORIES = st.sampled_from([None, list, dict, int, float, set])


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner, max_size=4)
    maps = st.dictionaries(st.one_of(TEXTS, HASHABLE), inner, max_size=4)
    return st.one_of(
        *(lists, lists.map(tuple), st.dictionaries(TEXTS, inner, max_size=4), maps),
        *(st.sets(HASHABLE, max_size=4), st.binary(max_size=8).map(bytearray)),
        *(maps.map(OrderedDict), st.builds(defaultdict, FACTORIES, maps)),
        *(st.builds(Counter, maps), st.builds(deque, lists, st.sampled_from([None, 2, 9]))),
        st.builds(slice, SCALARS, inner, SCALARS),
        lists.map(lambda items: [items, items, (items, {"again": items})]),  # one list, shared
    )


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(value=st.recursive(HASHABLE, containers, max_leaves=20))
def test_plain_data_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, value: Any
) -> None:
    folder = tmp_path_factory.getbasetemp() / "plain"
    assert picture(there_and_back(folder, value)) == picture(value)


@settings(max_examples=60, deadline=None)
@given(
    value=st.one_of(
        st.lists(st.floats(), min_size=65, max_size=80),
        st.lists(st.integers(-(2**63), 2**63 - 1), min_size=65, max_size=80),
        st.lists(st.integers(-(2**65), 2**65), min_size=65, max_size=80),
        st.lists(st.one_of(TEXTS, st.floats(), st.none()), min_size=65, max_size=80),
        st.lists(st.one_of(st.booleans(), st.integers()), min_size=65, max_size=80),
        st.lists(st.floats(), min_size=65, max_size=80).map(tuple),
        st.lists(st.floats(), min_size=65, max_size=80).map(lambda x: deque(x, maxlen=70)),
    )
)
def test_long_lists_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, value: Any
) -> None:
    folder = tmp_path_factory.getbasetemp() / "long"
    assert picture(there_and_back(folder, value)) == picture(value)


def test_what_contains_itself_does_so_again(tmp_path: Path) -> None:
    rows: list[Any] = [1]
    table = {"rows": rows, 3: deque([rows])}
    rows.append(table)

    found = there_and_back(tmp_path, rows)

    assert found[1]["rows"] is found
    assert found[1][3][0] is found


def test_a_declared_object_is_captured_under_its_name_only(tmp_path: Path) -> None:
    rows = [1.5]
    state = take(tmp_path, {"rows": rows}, variables={"a": {"rows": rows}, "b": (rows, [rows])})

    assert state["rows"] == [1.5]
    assert state.manifest.frames[0].values["a"]["of"]["rows"] == {"t": "declared", "name": "rows"}
    assert state["a"]["rows"] == [1.5]
    assert state["b"][0] is state["b"][1][0] is state["a"]["rows"]


def test_declared_objects_that_hold_each_other_can_be_read(tmp_path: Path) -> None:
    one: list[Any] = [1]
    two: list[Any] = [2, one]
    one.append(two)
    state = take(tmp_path, {"one": one, "two": two})

    assert state["one"][1][0] == 2
    assert state["two"][1][0] == 1


# --- tensors ----------------------------------------------------------------------------------

DTYPES = sorted(
    (
        *("float64", "float32", "float16", "bfloat16", "complex128", "complex64", "complex32"),
        *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
)


def bits(tensor: Any) -> bytes:
    """The numbers, whatever they are."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return b"" if plain.numel() == 0 else plain.view(-1).view(torch.uint8).numpy().tobytes()


def same_tensor(found: Any, tensor: Any) -> bool:
    return (
        type(found) is type(tensor)
        and (found.dtype, found.shape, found.device) == (tensor.dtype, tensor.shape, tensor.device)
        and found.requires_grad == (tensor.requires_grad and tensor.is_leaf)
        and bits(found) == bits(tensor)
    )


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (5,), (2, 3, 2), (40_000, 2)], ids=str)
def test_tensors_of_every_type(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    kind = getattr(torch, dtype)
    size = torch.empty((), dtype=kind).element_size()
    noise = torch.randint(0, 2 if dtype == "bool" else 256, (*shape, size), dtype=torch.uint8)
    tensor = noise.view(kind).reshape(shape)

    assert same_tensor(there_and_back(tmp_path, tensor), tensor)


def in_inference() -> Any:
    with torch.inference_mode():
        return torch.arange(4.0)


def with_graph() -> Any:
    return torch.arange(3.0, requires_grad=True) * 2


x = torch.arange(24.0).reshape(2, 3, 2, 2)
z = torch.tensor([1 + 2j, -3.5j])
LAYOUTS = {
    "transposed": x.transpose(0, 1),
    "sliced": x[:, ::2],
    "the end of another": x.flatten()[5:],
    "channels last": x.to(memory_format=torch.channels_last),
    "turned": x.permute(3, 1, 0, 2),
    "expanded": torch.tensor([[1.0], [2.0]]).expand(2, 5),
    "expanded from one": torch.tensor(3.0).expand(4),
    "overlapping": torch.arange(6.0).unfold(0, 3, 1),
    "conjugated": z.conj(),
    "negative": z.conj().imag,
    "real part": z.real,
    "with a graph": with_graph(),
    "inference": in_inference(),
    "a leaf": torch.ones(3, requires_grad=True),
    "complex leaf": torch.ones(3, dtype=torch.cfloat, requires_grad=True),
    "parameter": nn.Parameter(torch.arange(6.0).reshape(2, 3).T),
    "frozen parameter": nn.Parameter(torch.ones(2), requires_grad=False),
    "number parameter": nn.Parameter(torch.ones(2, dtype=torch.int8), requires_grad=False),
    "a numpy array's": torch.from_numpy(np.arange(5)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_of_every_layout(tmp_path: Path, layout: str) -> None:
    tensor = LAYOUTS[layout]

    found = there_and_back(tmp_path, tensor)

    assert same_tensor(found, tensor)
    assert found.grad_fn is None
    assert found.data_ptr() % 64 == 0
    if layout in ("transposed", "channels last", "turned", "parameter"):
        assert found.stride() == tensor.stride()


def test_sparse_and_meta_tensors(tmp_path: Path) -> None:
    sparse = torch.sparse_coo_tensor([[1, 0, 1]], torch.ones(3), (3,), check_invariants=True)

    found = there_and_back(tmp_path, [sparse, torch.empty(2, 3, device="meta"), sparse])

    assert found[0].is_coalesced()
    assert found[0] is found[2]
    assert torch.equal(found[0].to_dense(), sparse.to_dense())
    assert found[1].is_meta
    assert found[1].shape == (2, 3)


def large_leaves(state: State) -> int:
    return sum(leaf.size_bytes > 100_000 for leaf in set(state.manifest.leaves))


def test_values_share_bytes_but_no_memory(tmp_path: Path) -> None:
    large = torch.zeros(400_000)
    state = take(tmp_path, variables={"a": large, "b": large[:], "c": [torch.zeros(3)] * 2})

    a, b, again, c = state["a"], state["b"], reread(state)["a"], state["c"]
    a += 1

    assert large_leaves(state) == 1
    assert not b.any()
    assert not again.any()
    assert c[0] is c[1]


class Wrapped(torch.Tensor):  # type: ignore[misc]
    """A tensor whose numbers are elsewhere."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


UNUSUAL = {
    "quantized": lambda: torch._empty_affine_quantized([2], scale=0.1, dtype=torch.qint8),
    "layout": lambda: torch.eye(3).to_sparse_coo().to_sparse_csr(),
    "whose bytes": lambda: torch.Tensor._make_wrapper_subclass(Wrapped, (2,)),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:.*quantiz")
@pytest.mark.parametrize("why", UNUSUAL)
def test_unusual_tensors_are_named_and_the_rest_kept(tmp_path: Path, why: str) -> None:
    state = take(tmp_path, variables={"it": [UNUSUAL[why](), torch.ones(2)]})

    assert why in state.missing["it[0]"]
    assert isinstance(state["it"][0], Lost)
    assert state["it"][1].tolist() == [1, 1]


def test_sharded_tensors_are_named(tmp_path: Path) -> None:
    class Sharded(torch.Tensor):  # type: ignore[misc]
        placements = ()

    state = take(tmp_path, variables={"it": torch.ones(2).as_subclass(Sharded)})

    assert "sharded" in state.missing["it"]


# --- NumPy and random generators --------------------------------------------------------------


def as_memmap(folder: Path) -> Any:
    found = np.memmap(folder / "map", dtype="f4", mode="w+", shape=(3, 2))
    found[:] = 7
    return found


grid = np.arange(24.0).reshape(4, 6)
frozen = np.arange(3)
frozen.flags.writeable = False
ARRAYS = {
    "rows": grid,
    "columns": np.asfortranarray(grid),
    "strided": grid[::2, ::-3],
    "0-d": np.array(7, dtype="i2"),
    "empty": np.zeros((3, 0), dtype="u4"),
    "large": np.arange(100_000),
    "other endian": np.arange(5, dtype=">i4"),
    "half": np.array([1, np.nan, -0.0], dtype="f2"),
    "long double": np.arange(3, dtype=np.longdouble) / 3,
    "texts": np.array(["a", "", "\udc80é"]),
    "bytes": np.array([b"abc", b"d"]),
    "dates": np.array(["2026-11-18", "NaT"], dtype="M8[D]"),
    "spans": np.array([3, 4], dtype="m8[5ms]"),
    "records": np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
    "objects": np.array([None, "x", [1]], dtype=object),
    "read-only": frozen,
    "masked": np.ma.masked_array([1, 2], mask=[True, False]),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_of_every_kind(tmp_path: Path, kind: str) -> None:
    array = ARRAYS[kind]

    found = there_and_back(tmp_path, array)

    assert (type(found), found.dtype, found.shape) == (type(array), array.dtype, array.shape)
    assert found.tolist() == array.tolist() or np.isnan(array).any()
    assert found.dtype.hasobject or found.tobytes() == array.tobytes()
    assert found.flags.f_contiguous == array.flags.f_contiguous
    assert found.flags.writeable


def test_a_mapped_file_comes_back_as_an_array(tmp_path: Path) -> None:
    found = there_and_back(tmp_path, as_memmap(tmp_path))
    assert type(found) is np.ndarray
    assert found.tolist() == [[7, 7]] * 3


NUMBERS = [
    *(np.float64(0.1), np.float32("nan"), np.int8(-3), np.uint64(2**64 - 1), np.bool_(True)),
    *(np.complex64(1 - 2j), np.longdouble(1) / 3, np.float16(-0.0), np.str_("é\udc80"), np.str_()),
    *(np.bytes_(b"ab"), np.bytes_(b"a\0"), np.str_("a\0"), np.datetime64("2026-11-18T19"), np.timedelta64(5, "us")),
    np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")])[0],
]  # fmt: skip


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
def test_numbers_of_numpy(tmp_path: Path, number: Any) -> None:
    found = there_and_back(tmp_path, number)
    assert type(found) is type(number)
    assert found.dtype == number.dtype
    assert found.tobytes() == number.tobytes()
    assert repr(found) == repr(number)


@pytest.mark.parametrize("kind", ["f4", "f8", "i8", "?", "c8", "M8[s]", "m8[s]"])
def test_long_lists_of_numbers_of_numpy(tmp_path: Path, kind: str) -> None:
    value = list(np.arange(70).astype(kind))
    found = there_and_back(tmp_path, value)
    assert type(found) is list
    assert [(type(item), item.dtype, item) for item in found] == [
        (type(item), item.dtype, item) for item in value
    ]


def test_types_and_devices(tmp_path: Path) -> None:
    value = [torch.float16, torch.device("cuda:3"), torch.Size([2, 3]), np.dtype(">f4")]
    found = there_and_back(tmp_path, value)
    assert found == value
    assert list(map(type, found)) == list(map(type, value))


GENERATORS: dict[str, Callable[[], Any]] = {
    "random": lambda: random.Random(3),
    "torch": lambda: torch.Generator().manual_seed(3),
    "RandomState": lambda: np.random.RandomState(3),
    **{
        name: partial(lambda kind: np.random.Generator(kind(3)), getattr(np.random, name))
        for name in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
    },
    "RandomState of PCG64": lambda: np.random.RandomState(np.random.PCG64(3)),
}


def draw(generator: Any) -> list[float]:
    if isinstance(generator, torch.Generator):
        return torch.randn(5, generator=generator).tolist()  # type: ignore[no-any-return]
    if isinstance(generator, random.Random):
        return [generator.gauss(0, 1) for _ in range(5)]
    small = [int(generator.bytes(1)[0]) for _ in range(3)]
    return [*generator.standard_normal(5).tolist(), *map(float, small)]


@pytest.mark.parametrize("kind", GENERATORS)
def test_random_generators_go_on_with_the_same_numbers(tmp_path: Path, kind: str) -> None:
    generator = GENERATORS[kind]()
    draw(generator)

    found = there_and_back(tmp_path, generator)

    assert type(found) is type(generator)
    assert draw(found) == draw(generator)


def test_the_children_of_a_generator_are_the_same(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    generator.spawn(2)

    found = there_and_back(tmp_path, generator)

    assert draw(found.spawn(1)[0]) == draw(generator.spawn(1)[0])


def test_a_generator_in_place_spawns_the_same_children(tmp_path: Path) -> None:
    generator, other = np.random.default_rng([1, 2**70]), np.random.default_rng(4)
    generator.spawn(2)
    state = take(tmp_path, {"it": generator})
    expected = draw(generator.spawn(1)[0])

    for target in (other, generator):
        state.restore({"it": target})
        assert draw(target.spawn(1)[0]) == expected


def test_taking_a_checkpoint_draws_no_number(tmp_path: Path) -> None:
    def states() -> list[Any]:
        numbers = np.random.get_state()[1]
        return [random.getstate(), numbers.tolist(), torch.get_rng_state().tolist()]

    loader = torch.utils.data.DataLoader([1, 2, 3], shuffle=True)
    net = nn.Linear(2, 2)
    before = states()

    take(tmp_path, {"net": net, "loader": loader}, variables={"generator": random.Random(3)})

    assert states() == before


# --- objects ----------------------------------------------------------------------------------


class Tracker:
    """Of the user's own; nothing of it may run."""

    calls = 0

    def __init__(self) -> None:
        self.best, self.rows = 0.5, [1, 2]

    def __setattr__(self, name: str, value: Any) -> None:
        Tracker.calls += 1
        object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        Tracker.calls += 1
        return False

    __hash__ = None  # type: ignore[assignment]


@dataclass
class Point:
    x: float
    more: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    x: float


class Slotted:
    __slots__ = ("made", "tensor")

    def __init__(self, tensor: Any, made: Any = None) -> None:
        self.tensor, self.made = tensor, made


class Pair(NamedTuple):
    a: Any
    b: Any


class Mode(enum.Enum):
    TRAIN = "train"


class Level(enum.IntEnum):
    HIGH = 3


def test_objects_of_own_classes_are_their_attributes(tmp_path: Path) -> None:
    tracker, point = Tracker(), Point(1.5)
    point.more += [point, tracker.rows]
    calls = Tracker.calls

    found = there_and_back(tmp_path, [tracker, point, Frozen(2.5), {Frozen(3.5): 1}])

    assert Tracker.calls == calls
    assert found[0] == {"best": 0.5, "rows": [1, 2]}
    assert type(found[0]) is Instance
    assert found[0].type_name == "tests.test_encoding.Tracker"
    assert found[1]["more"][0] is found[1]
    assert found[1]["more"][1] is found[0]["rows"]
    assert found[2] == {"x": 2.5}
    assert next(iter(found[3])) == {"x": 3.5}


def test_other_objects_are_pickled_around_their_tensors(tmp_path: Path) -> None:
    weights = torch.ones(30_000)
    value = [Slotted(weights), Pair(weights, np.arange(3)), Mode.TRAIN, Level.HIGH, weights]

    found = there_and_back(tmp_path, value)

    assert [type(item) for item in found[:4]] == [Slotted, Pair, Mode, Level]
    assert found[0].tensor is found[1].a is found[4]
    assert found[1].b.tolist() == [0, 1, 2]
    assert found[2] is Mode.TRAIN
    assert large_leaves(take(tmp_path, variables={"value": value})) == 1


def test_scikit_learn(tmp_path: Path) -> None:
    ensemble = pytest.importorskip("sklearn.ensemble")
    x, y = np.random.RandomState(0).rand(40, 3), np.arange(40) % 3
    forest = ensemble.RandomForestClassifier(4, random_state=np.random.RandomState(1)).fit(x, y)

    found = there_and_back(tmp_path, forest)

    assert (found.predict_proba(x) == forest.predict_proba(x)).all()
    assert (found.fit(x, y).predict_proba(x) == forest.fit(x, y).predict_proba(x)).all()


class Raising:
    """Reading it fails."""

    def state_dict(self) -> Any:
        raise RuntimeError("not now")

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError("it has given none")


UNCAPTURABLE: dict[str, tuple[Callable[[], Any], str]] = {
    "lock": (threading.Lock, "pickled"),
    "generator": (lambda: (i for i in range(3)), "pickled"),
    "file": (lambda: io.open(__file__), "pickled"),  # noqa: SIM115, UP020
    "lambda": (lambda: lambda: 1, "code"),
    "module": (lambda: types, "code"),
    "class": (lambda: Point, "code"),
    "method": (lambda: Point(1).__init__, "code"),
    "thread": (threading.Thread, "pickled"),
    "slots around a lock": (lambda: Slotted(threading.Lock()), "pickled"),
    "what fails": (Raising, "not now"),
    "module as a key": (lambda: {nn.Linear(1, 1): 1}, "identity"),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("kind", UNCAPTURABLE)
def test_what_cannot_be_captured_is_named_and_the_rest_kept(tmp_path: Path, kind: str) -> None:
    make, why = UNCAPTURABLE[kind]
    point = Point(1.5, [make(), 7])

    state = take(tmp_path, variables={"point": point, "after": [1]})

    ((name, reason),) = state.missing.items()
    assert name.startswith("point.more[0]") or "key" in kind
    assert why in reason
    assert "\n" not in reason
    assert state["point"]["more"][1] == 7
    assert state["point"]["x"] == 1.5
    assert state["after"] == [1]


def test_tensors_of_what_cannot_be_pickled_are_kept_elsewhere(tmp_path: Path) -> None:
    weights = torch.ones(3)
    state = take(tmp_path, variables={"bad": Slotted(threading.Lock(), weights), "good": weights})
    assert list(state.missing) == ["bad"]
    assert state["good"].tolist() == [1, 1, 1]


def test_what_is_nested_too_deeply_is_named(tmp_path: Path) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    state = take(tmp_path, variables={"deep": deep, "other": 1})
    assert "nested more than" in next(iter(state.missing.values()))
    assert state["other"] == 1


def test_a_tuple_that_contains_itself_is_named(tmp_path: Path) -> None:
    rows: list[Any] = []
    value = (rows, 1)
    rows.append(value)
    state = take(tmp_path, variables={"value": value})
    assert "contains itself" in state.missing["value[0][0]"]
    assert state["value"][1] == 1
