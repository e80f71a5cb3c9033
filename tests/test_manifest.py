"""The document of a checkpoint: flor.checkpoint.manifest."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flor.checkpoint.manifest import MANIFEST_FORMAT, Frame, Leaf, Manifest, Missing
from flor.checkpoint.state import State
from flor.errors import DamagedCheckpoint
from flor.model import Step
from flor.objects import ObjectStore

TEXT = st.text(st.characters(exclude_categories=()), max_size=8)
"""Lone surrogates too: file names hold them."""
INTEGERS = st.integers(-(2**63), 2**63)
JSON = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
NODES = st.dictionaries(TEXT, JSON, max_size=3)
LEAVES = st.builds(Leaf, TEXT, INTEGERS, INTEGERS, INTEGERS)
STEPS = st.builds(Step, TEXT, st.integers(0, 9), st.none() | TEXT | INTEGERS)
FRAMES = st.builds(Frame, TEXT, TEXT, INTEGERS, TEXT, NODES, st.lists(TEXT, max_size=2).map(tuple))
MANIFESTS = st.builds(
    Manifest,
    run_id=TEXT,
    number=INTEGERS,
    place=st.lists(STEPS, max_size=3).map(tuple),
    boundary=st.none() | TEXT,
    final=st.booleans(),
    objects=NODES,
    frames=st.lists(FRAMES, max_size=2).map(tuple),
    rng=NODES,
    entry_rng=NODES,
    missing=st.lists(st.builds(Missing, TEXT, TEXT), max_size=2).map(tuple),
    leaves=st.lists(LEAVES, max_size=3).map(tuple),
    pickles=st.lists(INTEGERS, max_size=2).map(tuple),
    signature=st.none() | TEXT,
)


def whole() -> dict[str, Any]:
    """The document of a small manifest."""
    digest = "ab" * 32
    manifest = Manifest(
        run_id="20261118-190312-4f2a9c",
        number=3,
        place=(Step("fold", 1), Step("epoch", 7, "seven")),
        boundary="step",
        final=True,
        objects={"model": {"t": "tensor", "dtype": "float32", "shape": [2], "leaf": 0}},
        frames=(Frame("train.py", "<module>", 9, "epoch", {"best": 0.5}, ("loss",)),),
        rng={"random": [1, 2]},
        missing=(Missing("lock", "cannot be pickled"),),
        leaves=(Leaf(digest, 0, 8, 77),),
        pickles=(0,),
        signature="ef" * 32,
    )
    found: dict[str, Any] = json.loads(manifest.to_bytes())
    return found


def places(document: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to everything in a document."""
    found = [above] if above else []
    if isinstance(document, dict):
        for key, value in document.items():
            found += places(value, (*above, key))
    elif isinstance(document, list):
        for number, value in enumerate(document):
            found += places(value, (*above, number))
    return found


def inside(document: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        document = document[key]
    return document


def packed(manifest: Manifest) -> bytes:
    """What is stored of it."""
    steps = manifest.packed()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            content: bytes = end.value
            return content


# --- to bytes and back ---------------------------------------------------------------------


@given(MANIFESTS)
def test_a_manifest_comes_back(manifest: Manifest) -> None:
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    assert Manifest.from_bytes(packed(manifest)) == manifest


@given(MANIFESTS)
def test_the_same_manifest_is_the_same_bytes(manifest: Manifest) -> None:
    """It is named by its content."""
    content = manifest.to_bytes()
    assert Manifest.from_bytes(content).to_bytes() == content


def test_numbers_that_json_does_not_know_come_back() -> None:
    manifest = Manifest("run", 1, (), None, False, {"a": math.nan, "b": -math.inf, "c": -0.0})
    back = Manifest.from_bytes(manifest.to_bytes()).objects
    assert math.isnan(back["a"])
    assert back["b"] == -math.inf
    assert math.copysign(1, back["c"]) == -1


def test_two_surrogates_in_a_row_stay_two() -> None:
    manifest = Manifest("run", 1, (), None, False, {"\ud83d\ude00": "\ud83d\ude00"})
    back = Manifest.from_bytes(manifest.to_bytes())
    assert [len(name) for name in back.objects] == [2]


def test_it_tells_what_it_needs_and_how_much_that_is() -> None:
    twice = Leaf("a" * 64, 0, 10, 1)
    leaves = (twice, twice, Leaf("a" * 64, 16, 5, 1), Leaf("b" * 64, 0, 100, 1))
    manifest = Manifest("run", 1, (), None, False, {}, leaves=leaves)

    assert manifest.digests == {"a" * 64, "b" * 64}
    assert manifest.size_bytes == 115


def test_a_long_one_is_made_in_short_steps_and_is_the_same() -> None:
    node = {"t": "tensor", "shape": [3], "leaf": 7}
    state = {"t": "map", "of": {f"p{number}": node for number in range(20_000)}}
    numbered = {"t": "dict", "items": [[number, state["of"]] for number in range(3)]}
    manifest = Manifest(
        "run", 1, (), None, False, {"net": {"of": state, "t": "state"}, "o": numbered}
    )

    assert sum(1 for _ in manifest.packed()) > 100
    assert json.loads(manifest.to_bytes())["objects"] == manifest.objects
    assert Manifest.from_bytes(packed(manifest)) == manifest
    assert len(packed(manifest)) < len(manifest.to_bytes()) / 10


@pytest.mark.parametrize("end", [1, 20, -1])
def test_what_is_stored_has_to_be_whole(end: int) -> None:
    manifest = Manifest("run", 1, (), None, False, {})
    with pytest.raises(DamagedCheckpoint):
        Manifest.from_bytes(packed(manifest)[:end])


# --- documents that flor did not write -----------------------------------------------------


@pytest.mark.parametrize("version", [0, MANIFEST_FORMAT + 1, "1", None, [1], 1.5])
def test_another_format_asks_for_another_flor(version: Any) -> None:
    document = whole() | {"format": version}
    with pytest.raises(DamagedCheckpoint, match="another format; upgrade flor"):
        Manifest.from_bytes(json.dumps(document).encode())


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"null", b"7", b'"format"', b"[]", b"[1]", b"{}", b"true"),
        *(b"\xff\xfe", b"\x80\x04K\x01.", b"[" * 200_000, b'{"a":' * 200_000),
        b'{"format":1}',
        b'{"format":' + b"9" * 10_000 + b"}",
        b'{"format":1,"place":7,"frames":[],"missing":[],"leaves":[],"pickles":[]}',
    ],
)
def test_what_is_no_manifest(content: bytes) -> None:
    with pytest.raises(DamagedCheckpoint, match="manifest"):
        Manifest.from_bytes(content)


@given(st.binary(max_size=200))
def test_any_bytes(content: bytes) -> None:
    with pytest.raises(DamagedCheckpoint):
        Manifest.from_bytes(content)


@pytest.mark.parametrize("name", sorted(whole()))
def test_a_manifest_that_lacks_something(name: str) -> None:
    optional = {"rng", "entry_rng", "signature"}
    document = whole()
    del document[name]
    content = json.dumps(document).encode()
    if name in optional:
        assert Manifest.from_bytes(content).run_id == document["run_id"]
    else:
        with pytest.raises(DamagedCheckpoint):
            Manifest.from_bytes(content)


def test_a_manifest_with_something_more() -> None:
    with pytest.raises(DamagedCheckpoint):
        Manifest.from_bytes(json.dumps(whole() | {"more": 1}).encode())


@settings(max_examples=400)
@given(st.data())
def test_a_manifest_with_anything_anywhere(data: st.DataObject) -> None:
    """It is refused when it is read, or when its bytes are; nothing else happens."""
    document = whole()
    place = data.draw(st.sampled_from(places(document)))
    inside(document, place[:-1])[place[-1]] = data.draw(JSON)
    content = json.dumps(document).encode("utf-8", "surrogatepass")
    store = ObjectStore(Path("nowhere"))
    try:
        manifest = Manifest.from_bytes(content)
        assert manifest.size_bytes == sum(leaf.size_bytes for leaf in set(manifest.leaves))
        state = State(manifest, store)
        assert state.run_id in repr(state)
        assert state.missing.keys() == {item.name for item in manifest.missing}
        state.check()
    except DamagedCheckpoint:
        pass
