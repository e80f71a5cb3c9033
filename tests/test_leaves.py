"""The bytes of a checkpoint, read and checked: flor.checkpoint.leaves."""

from __future__ import annotations

import os
import resource
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flor.checkpoint.leaves import MAP_ABOVE, Leaves
from flor.checkpoint.manifest import Leaf
from flor.errors import DamagedCheckpoint
from flor.objects import ObjectStore

SMALL, LARGE = b"a few bytes", bytes(range(256)) * (MAP_ABOVE // 128)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(tmp_path / "objects")


def stored(store: ObjectStore, *contents: bytes) -> list[Leaf]:
    """Each content as an object of its own."""
    return [Leaf(store.put(item), 0, len(item), zlib.crc32(item)) for item in contents]


def packed(store: ObjectStore, *contents: bytes) -> list[Leaf]:
    """All of them in one object."""
    digest, found, offset = store.put(b"".join(contents)), [], 0
    for content in contents:
        found.append(Leaf(digest, offset, len(content), zlib.crc32(content)))
        offset += len(content)
    return found


# --- reading -------------------------------------------------------------------------------


def test_leaves_are_read_when_they_are_asked_for(store: ObjectStore) -> None:
    expected = [SMALL, LARGE, b"", b"x" * MAP_ABOVE, b"y" * (MAP_ABOVE - 1)]
    leaves = Leaves(store, stored(store, *expected))

    assert [bytes(leaves[number]) for number in range(5)] == expected
    assert [bytes(leaves[number]) for number in range(5)] == expected


@pytest.mark.parametrize("times", [1, 100])
def test_leaves_of_one_object(store: ObjectStore, times: int) -> None:
    """Whether it is small, or large enough to be mapped."""
    expected = [b"one" * times * 50, b"", b"three" * times * 50, LARGE[:times]]
    leaves = Leaves(store, packed(store, *expected))
    leaves.load()

    assert [bytes(leaves[number]) for number in range(4)] == expected


def test_loading_tells_how_far_it_is(store: ObjectStore) -> None:
    leaves, progress = Leaves(store, stored(store, SMALL, LARGE, b"other")), list[int]()
    leaves.load([0, 2], progress.append)
    assert sum(progress) == len(SMALL) + 5
    leaves.load(progress=progress.append)
    assert sum(progress) == len(SMALL) + 5 + len(LARGE)
    leaves.load(progress=progress.append)
    assert sum(progress) == len(SMALL) + 5 + len(LARGE)


def test_only_what_is_wanted_has_to_be_there(store: ObjectStore) -> None:
    found = stored(store, SMALL, LARGE)
    store.path(found[1].digest).unlink()
    leaves = Leaves(store, found)

    assert bytes(leaves[0]) == SMALL
    with pytest.raises(DamagedCheckpoint):
        leaves.load()


@pytest.mark.parametrize("number", [1, -1, 10**9])
def test_a_leaf_that_there_is_not(store: ObjectStore, number: int) -> None:
    leaves = Leaves(store, stored(store, SMALL))
    with pytest.raises(IndexError, match=f"no leaf {number}"):
        leaves[number]
    with pytest.raises(IndexError, match=f"no leaf {number}"):
        leaves.take(number)


def test_no_leaves_at_all(store: ObjectStore) -> None:
    Leaves(store, []).load()


def test_what_is_read_counts_as_used(store: ObjectStore) -> None:
    found = stored(store, SMALL, LARGE)
    for leaf in found:
        os.utime(store.path(leaf.digest), (1, 1))
    Leaves(store, found).load()
    assert all(store.path(leaf.digest).stat().st_mtime > 1 for leaf in found)


@pytest.fixture
def few_files() -> Iterator[None]:
    """Room for no more than 32 open files; numbers that are in use are in between."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = set(map(int, os.listdir("/proc/self/fd")))
    few = [number for number in range(len(used) + 33) if number not in used][31] + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.usefixtures("few_files")
def test_a_state_may_have_more_large_leaves_than_a_process_open_files(store: ObjectStore) -> None:
    """1024 files are usual; large models with Adam's moments have thousands of tensors."""
    expected = [bytes([number]) * MAP_ABOVE for number in range(100)]
    leaves = Leaves(store, stored(store, *expected))

    leaves.load()

    assert [bytes(leaves.take(number)) for number in range(100)] == expected


def test_nothing_stays_open(store: ObjectStore) -> None:
    before = len(os.listdir("/proc/self/fd"))
    leaves = Leaves(store, stored(store, LARGE, SMALL, LARGE[1:]))
    leaves.load()
    leaves.take(0)[0] = 1
    del leaves
    assert len(os.listdir("/proc/self/fd")) == before


# --- damage --------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("damage", ["truncated", "emptied", "first", "last", "removed", "folder"])
def test_damage_is_found_before_anything_is_used(
    store: ObjectStore, content: bytes, damage: str
) -> None:
    leaf = stored(store, content)[0]
    path = store.path(leaf.digest)
    if damage == "truncated":
        os.truncate(path, len(content) - 1)
    elif damage == "emptied":
        os.truncate(path, 0)
    elif damage == "first":
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    elif damage == "last":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        path.unlink()
        if damage == "folder":
            path.mkdir()

    with pytest.raises(DamagedCheckpoint, match=leaf.digest[2:]):
        Leaves(store, [leaf]).load()
    with pytest.raises(DamagedCheckpoint):
        Leaves(store, [leaf]).take(0)


@settings(deadline=None)
@given(st.data(), st.integers(1, 400))
def test_any_flipped_bit_is_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, size: int
) -> None:
    store = ObjectStore(tmp_path_factory.getbasetemp() / "flipped")
    leaf = stored(store, bytes(size))[0]
    place = data.draw(st.integers(0, 8 * size - 1))
    content = bytearray(size)
    content[place // 8] ^= 1 << place % 8
    path = store.path(leaf.digest)
    path.write_bytes(content)
    with pytest.raises(DamagedCheckpoint, match="is damaged"):
        Leaves(store, [leaf]).load()
    path.unlink()


def test_damage_of_what_no_leaf_holds_is_no_harm(store: ObjectStore) -> None:
    first, padding, _ = packed(store, b"one", b"padding", b"three")
    store.path(first.digest).write_bytes(b"onePADDINGthree")

    assert bytes(Leaves(store, [first])[0]) == b"one"
    with pytest.raises(DamagedCheckpoint):
        Leaves(store, [first, padding]).load()


@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(
    ("offset", "size"), [(0, 1), (1, 0), (-1, 1), (-1, 0), (0, -1), (10**30, 0), (0, 10**30)]
)
def test_a_place_that_is_not_in_the_object(
    store: ObjectStore, content: bytes, offset: int, size: int
) -> None:
    whole = stored(store, content)[0]
    leaf = whole._replace(
        offset=offset, size_bytes=size if abs(size) == 10**30 else whole.size_bytes + size
    )
    with pytest.raises(DamagedCheckpoint, match="is damaged"):
        Leaves(store, [leaf]).load()


@settings(max_examples=150, deadline=None)
@given(st.integers(-20, 20), st.integers(-20, 20), st.integers(0, 2**32))
def test_no_numbers_lead_outside(
    tmp_path_factory: pytest.TempPathFactory, offset: int, size: int, crc: int
) -> None:
    """What is not refused is a part of the object with that size."""
    store = ObjectStore(tmp_path_factory.getbasetemp() / "numbers")
    digest = store.put(SMALL)
    for guess in (crc, zlib.crc32(SMALL[offset : offset + size])):
        try:
            found = Leaves(store, [Leaf(digest, offset, size, guess)])[0]
        except DamagedCheckpoint:
            continue
        assert len(found) == size
        assert bytes(found) in SMALL


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "AB" * 32, "ab" * 32, "/etc/passwd"])
def test_a_name_leads_nowhere_else(store: ObjectStore, digest: str) -> None:
    with pytest.raises(DamagedCheckpoint, match="cannot be read"):
        Leaves(store, [Leaf(digest, 0, 1, 0)]).load()


# --- memory of one's own -------------------------------------------------------------------


@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
def test_what_a_taker_writes_is_his_alone(store: ObjectStore, content: bytes) -> None:
    """Neither the file changes, nor what another one takes, before or after."""
    found = stored(store, content)
    leaves = Leaves(store, found)

    first = leaves.take(0)
    second = leaves.take(0)
    first[:] = bytes(len(content))
    third = leaves.take(0)
    second[0] = 77
    third[-1] = 78

    assert bytes(first) == bytes(len(content))
    assert bytes(second) == bytes([77]) + content[1:]
    assert bytes(third) == content[:-1] + bytes([78])
    assert store.path(found[0].digest).read_bytes() == content
    assert bytes(leaves[0]) == content


@pytest.mark.parametrize("parts", [[0, 1], [1, 0], [0, 1, 0, 1, 2, 2, 1]])
def test_takers_of_one_object_share_no_memory(store: ObjectStore, parts: list[int]) -> None:
    """Two leaves of the same bytes, one of a part of them."""
    whole = stored(store, LARGE)[0]
    part = LARGE[100 : 100 + MAP_ABOVE]
    inner = Leaf(whole.digest, 100, len(part), zlib.crc32(part))
    leaves, expected = Leaves(store, [whole, whole, inner]), [LARGE, LARGE, part]
    leaves.load()

    taken: list[tuple[memoryview, bytes]] = []
    for number in parts:
        found = leaves.take(number)
        assert bytes(found) == expected[number]
        for other, content in taken:
            assert bytes(other) == content
        found[:] = bytes([len(taken)]) * len(found)
        taken.append((found, bytes(found)))
    assert all(bytes(other) == content for other, content in taken)


def test_a_small_part_of_a_large_object_is_a_copy(store: ObjectStore) -> None:
    found = packed(store, b"small", LARGE)
    leaves = Leaves(store, found)
    leaves.load()

    small, large = leaves.take(0), leaves.take(1)
    small[0], large[0] = 1, 1

    assert bytes(leaves[0]) == b"small"
    assert bytes(leaves[1]) == LARGE


def test_what_was_taken_outlives_the_object(store: ObjectStore) -> None:
    """The store may be tidied as soon as the state is loaded."""
    found = stored(store, LARGE)
    taken = Leaves(store, found).take(0)
    store.path(found[0].digest).unlink()

    assert bytes(taken) == LARGE
