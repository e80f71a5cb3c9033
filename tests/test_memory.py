"""Memory for copies: flor.checkpoint.memory."""

from __future__ import annotations

import ctypes
import gc
import itertools
import mmap
import os
import random
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flor.checkpoint import memory
from flor.checkpoint.memory import HUGE_PAGE, PAGE, SEGMENT_BYTES, Arena, Region, Segment

MIB = 1024 * 1024
SIZES = st.one_of(
    st.integers(1, 3 * PAGE), st.integers(1, 5 * MIB), st.just(SEGMENT_BYTES + PAGE + 1)
)
OPERATIONS = st.one_of(
    st.tuples(st.just("take"), SIZES),
    st.tuples(st.just("give"), st.integers(0, 100)),
    st.tuples(st.just("reserve"), st.integers(0, 6 * MIB)),
)


def mark(region: Region, text: int) -> None:
    """Write to both ends of a region."""
    for place in (region.address, region.end - 8):
        ctypes.memmove(place, text.to_bytes(8, "little"), 8)


def marks(region: Region) -> set[int]:
    ends = (region.address, region.end - 8)
    return {int.from_bytes(ctypes.string_at(place, 8), "little") for place in ends}


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def mapped_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE


def is_mapped(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            return True
    return False


def is_true_in_child(action: Callable[[], bool]) -> bool:
    """Whether a forked child found it true, and did not crash."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other tests' threads
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if action() else 1
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


# --- bytes ---------------------------------------------------------------------------------


def test_copies_are_equal_until_a_byte_changes() -> None:
    left, right = Arena().take(3 * PAGE), Arena().take(3 * PAGE)
    mark(left, 7)

    memory.copy(right.address, left.address, 3 * PAGE)
    assert memory.equal(left.address, right.address, 3 * PAGE)

    ctypes.memset(right.end - 1, 1, 1)
    assert not memory.equal(left.address, right.address, 3 * PAGE)
    assert memory.equal(left.address, right.address, 3 * PAGE - 1)


def test_a_view_reads_and_does_not_write() -> None:
    region = Arena().take(PAGE)
    mark(region, 5)

    found = memory.view(region.address, PAGE)

    assert len(found) == PAGE
    assert found[0] == 5
    with pytest.raises(TypeError):
        found[0] = 1


# --- the arena -----------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(OPERATIONS, max_size=40))
def test_regions_are_their_holders_alone(operations: list[tuple[str, int]]) -> None:
    """Against a list of who holds what: no overlap, no lost byte, no lost account."""
    arena, held = Arena(), dict[int, Region]()
    for number, (operation, argument) in enumerate(operations, 1):
        if operation == "take":
            region = arena.take(argument)
            assert argument <= region.size_bytes < argument + PAGE
            assert region.address % PAGE == 0
            mark(region, number)
            held[number] = region
        elif operation == "give" and held:
            arena.give(held.pop(sorted(held)[argument % len(held)]))
        elif operation == "reserve":
            for _ in arena.reserve(argument):
                pass
            assert arena.reserved_bytes - arena.used_bytes >= argument
        assert arena.used_bytes == sum(region.size_bytes for region in held.values())
        assert arena.reserved_bytes >= arena.used_bytes
        assert all(marks(region) == {key} for key, region in held.items())
    places = sorted((region.address, region.end) for region in held.values())
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))


@given(st.randoms(use_true_random=False), st.integers(1, 20))
def test_neighbours_that_come_back_are_one(order: random.Random, count: int) -> None:
    """In whatever order they come back, the whole segment can be taken again."""
    arena = Arena()
    regions = [arena.take(SEGMENT_BYTES // count) for _ in range(count)]
    before = arena.reserved_bytes
    order.shuffle(regions)

    for region in regions:
        arena.give(region)
    whole = arena.take(before)

    assert arena.reserved_bytes == before == whole.size_bytes


def test_what_is_given_back_is_used_again() -> None:
    arena = Arena()
    first = arena.take(MIB)
    arena.give(first)

    assert arena.take(MIB).address == first.address


def test_the_smallest_hole_that_fits_is_taken() -> None:
    # [4 MiB free][held][1 MiB free][held][rest…]
    arena = Arena()
    large, _, small, _ = regions = [arena.take(size * MIB) for size in (4, 1, 1, 1)]
    arena.give(large)
    arena.give(small)

    assert arena.take(MIB).address == small.address
    assert len(regions) == 4


def test_a_segment_too_small_makes_way_for_a_larger_one() -> None:
    """A state that grows does not keep the memory of each size that it had."""
    arena = Arena()
    for factor in (1, 2, 3, 4):
        arena.give(arena.take(factor * SEGMENT_BYTES))

    assert arena.reserved_bytes == 4 * SEGMENT_BYTES


def test_more_memory_than_there_is_is_an_error_that_leaves_the_arena_whole() -> None:
    arena = Arena()
    held = arena.take(MIB)
    mark(held, 3)

    with pytest.raises(MemoryError, match="copy of the state"):
        arena.take(2**55)

    assert marks(held) == {3}
    assert arena.used_bytes == MIB
    assert arena.take(MIB).address != held.address


def test_a_segment_begins_on_a_huge_page() -> None:
    segment = Segment(PAGE)

    assert segment.address % HUGE_PAGE == 0
    assert segment.size_bytes == HUGE_PAGE


# --- the background's part -----------------------------------------------------------------


def test_reserved_memory_is_there_before_it_is_used() -> None:
    arena = Arena()
    before = resident_bytes()

    steps = sum(1 for _ in arena.reserve(96 * MIB))

    assert steps == 96 * MIB // memory.FAULT_BYTES
    assert resident_bytes() - before > 90 * MIB
    assert arena.take(96 * MIB).size_bytes == arena.reserved_bytes == 96 * MIB


def test_without_the_system_call_the_pages_are_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_POPULATE_WRITE", 9999)  # as of an older kernel
    arena = Arena()
    before = resident_bytes()

    for _ in arena.reserve(32 * MIB):
        pass

    assert resident_bytes() - before > 30 * MIB


def test_room_that_is_there_is_not_reserved_again() -> None:
    arena = Arena()
    for _ in arena.reserve(4 * MIB):
        pass

    assert list(arena.reserve(4 * MIB)) == []
    assert arena.reserved_bytes == 4 * MIB


def test_a_reservation_that_is_given_up_takes_nothing() -> None:
    """The thread was stopped in the middle, and the rest abandoned."""
    arena, before = Arena(), mapped_bytes()
    work = arena.reserve(64 * MIB)
    next(work)
    assert mapped_bytes() - before >= 64 * MIB

    del work
    gc.collect()

    assert mapped_bytes() - before < 16 * MIB
    assert arena.reserved_bytes == 0


# --- back to the system --------------------------------------------------------------------


def test_released_memory_goes_back_to_the_system() -> None:
    resident, mapped = resident_bytes(), mapped_bytes()
    arena = Arena()
    for _ in arena.reserve(128 * MIB):
        pass
    arena.give(arena.take(MIB))

    arena.release()

    assert resident_bytes() - resident < 16 * MIB
    assert mapped_bytes() - mapped < 16 * MIB
    assert (arena.reserved_bytes, arena.used_bytes) == (0, 0)


def test_a_held_region_outlives_the_release() -> None:
    arena = Arena()
    region = arena.take(MIB)
    mark(region, 9)

    arena.release()
    del arena
    gc.collect()

    assert marks(region) == {9}
    address = region.address
    del region
    assert not is_mapped(address)


def test_many_arenas_leave_nothing_behind() -> None:
    before = mapped_bytes()
    for _ in range(50):
        arena = Arena()
        regions = [arena.take(MIB) for _ in range(100)]
        del arena, regions

    assert mapped_bytes() - before < 2 * SEGMENT_BYTES


# --- forks ---------------------------------------------------------------------------------


def test_a_forked_child_never_has_the_memory() -> None:
    arena = Arena()
    region = arena.take(8 * MIB)
    mark(region, 4)

    assert is_mapped(region.address)
    assert is_true_in_child(lambda: not is_mapped(region.address))
    assert marks(region) == {4}


def test_a_forked_child_unmaps_nothing_of_its_own() -> None:
    """Where the parent has its copies, the child may have something else."""
    held = [Arena().take(HUGE_PAGE)]
    address = held[0].address

    def replaced() -> bool:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10  # MAP_FIXED
        mode = mmap.PROT_READ | mmap.PROT_WRITE
        assert memory._libc.mmap(address, HUGE_PAGE, mode, flags, -1, 0) == address
        ctypes.memset(address, 7, PAGE)
        held.clear()
        gc.collect()
        return ctypes.string_at(address, PAGE) == b"\7" * PAGE

    assert is_true_in_child(replaced)
    assert is_mapped(address)


# --- what there is -------------------------------------------------------------------------


def test_memory_is_affordable_if_it_leaves_the_training_enough() -> None:
    available = memory.available_bytes()
    assert available is not None
    assert available > 0
    assert memory.affordable(MIB)
    assert not memory.affordable(available)
    assert not memory.affordable(2**60)


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({}, None),
        ({"/proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    4 kB\n"}, 4096),
        ({"/sys/fs/cgroup/memory.max": "max\n", "/sys/fs/cgroup/memory.current": "5\n"}, None),
        ({"/sys/fs/cgroup/memory.max": "900\n", "/sys/fs/cgroup/memory.current": "500\n"}, 400),
        ({"/sys/fs/cgroup/memory.max": "900\n", "/sys/fs/cgroup/memory.current": "950\n"}, 0),
        ({"/sys/fs/cgroup/memory.max": "900\n"}, None),
        (
            {
                "/proc/meminfo": "MemAvailable: 1 kB\n",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "/sys/fs/cgroup/memory/memory.usage_in_bytes": "500\n",
            },
            1024,
        ),
    ],
)
def test_the_container_may_leave_less_than_the_system(
    files: dict[str, str], available: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_text(path: Path, **options: str) -> str:
        if str(path) not in files:
            raise FileNotFoundError(path)
        return files[str(path)]

    monkeypatch.setattr(Path, "read_text", read_text)

    assert memory.available_bytes() == available
    assert memory.affordable(100) is (available is None or available * 0.7 > 100)
