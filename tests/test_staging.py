"""Copies that are taken while the training waits: flor.checkpoint.staging."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flor.checkpoint.leaves import Leaves
from flor.checkpoint.manifest import Leaf, Manifest
from flor.checkpoint.memory import PAGE
from flor.checkpoint.staging import PARALLEL_BYTES, SMALL_BYTES, Pending, Staging
from flor.checkpoint.writing import DIRECT_BYTES, Objects, Written, write
from flor.objects import ObjectStore

LARGE = 30_000  # floats: more than SMALL_BYTES


class Checkpoints:
    """Copies blocks, writes them, and reads back what was written."""

    def __init__(self, folder: Path) -> None:
        self.store = ObjectStore(folder)
        self.staging = Staging()
        self.leaves: list[Leaf] = []
        self.new_bytes = 0
        self._objects = Objects(self.store)

    def copy(self, *blocks: Any, live: bool = False) -> list[Pending]:
        self.staging.begin(live=live)
        for block in blocks:
            put(self.staging, block)
        return self.staging.end()

    def write(self, pending: list[Pending]) -> list[bytes]:
        def done(written: Written, leaves: list[Leaf]) -> None:
            if not self.staging.live:
                self.staging.remember(pending, leaves)
            self.leaves = leaves
            self.new_bytes = written.new_bytes

        for _ in write(Manifest("run", 1, (), None, False, {}), pending, self._objects, done):
            pass
        return self.read(self.leaves)

    def read(self, leaves: list[Leaf]) -> list[bytes]:
        found = Leaves(self.store, leaves)
        found.load()
        return [bytes(found[number]) for number in range(len(leaves))]

    def take(self, *blocks: Any) -> list[bytes]:
        return self.write(self.copy(*blocks))


def put(staging: Staging, block: Any) -> int:
    if isinstance(block, torch.Tensor):
        address, hint = block.data_ptr(), block._version
        return staging.put_block(address, block.nbytes, hint, block)
    return staging.put_block(block.ctypes.data, block.nbytes, None, block)


def bytes_of(block: Any) -> bytes:
    if isinstance(block, torch.Tensor):
        return ctypes.string_at(block.data_ptr(), block.nbytes)
    return bytes(block.tobytes())


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path)


# --- what was there is what is kept --------------------------------------------------------


def test_what_the_training_writes_afterwards_is_not_in_the_copy(checkpoints: Checkpoints) -> None:
    small, large = torch.zeros(10), torch.zeros(LARGE)
    before = [bytes_of(small), bytes_of(large)]

    pending = checkpoints.copy(small, large)
    small.fill_(7)
    large.fill_(7)

    assert [bytes(item.content) for item in pending] == before
    assert checkpoints.write(pending) == before


def test_what_did_not_change_keeps_its_leaf_and_is_not_copied(checkpoints: Checkpoints) -> None:
    same, other = torch.rand(LARGE), torch.rand(LARGE)
    checkpoints.take(same, other)
    before = checkpoints.leaves
    assert checkpoints.staging.copied_bytes == same.nbytes + other.nbytes

    other.add_(1)
    pending = checkpoints.copy(same, other)

    assert [item.leaf for item in pending] == [before[0], None]
    assert checkpoints.staging.copied_bytes == other.nbytes
    assert checkpoints.write(pending) == [bytes_of(same), bytes_of(other)]
    assert checkpoints.leaves[0] == before[0]


def test_a_version_that_goes_on_without_a_change_is_stored_once(checkpoints: Checkpoints) -> None:
    tensor = torch.rand(LARGE)
    checkpoints.take(tensor)
    before = checkpoints.leaves
    tensor.add_(0.0)

    assert checkpoints.take(tensor) == [bytes_of(tensor)]
    assert checkpoints.leaves == before
    assert checkpoints.new_bytes < 1000


def test_a_copy_that_was_never_written_is_not_relied_on(checkpoints: Checkpoints) -> None:
    """The disk was full: nobody has these bytes."""
    tensor = torch.rand(LARGE)
    checkpoints.copy(tensor)

    pending = checkpoints.copy(tensor)

    assert pending[0].leaf is None
    assert checkpoints.write(pending) == [bytes_of(tensor)]


def test_a_failed_write_in_between_leads_nowhere_else(checkpoints: Checkpoints) -> None:
    """a is written, b is not; what holds a again must not take b for it."""
    tensor = torch.zeros(LARGE)
    checkpoints.take(tensor)
    tensor.data.fill_(1)
    checkpoints.copy(tensor)
    tensor.data.fill_(0)

    assert checkpoints.take(tensor) == [bytes_of(tensor)]


# --- writes that torch does not see --------------------------------------------------------

Escape = Callable[[Any], Callable[[], Any]]
"""Is given a tensor before its first checkpoint, and returns what writes to it later."""


def older_alias(tensor: Any) -> Callable[[], Any]:
    alias = tensor.data
    return lambda: alias.add_(1)


def numpy_view(tensor: Any) -> Callable[[], Any]:
    view = tensor.detach().numpy()
    return lambda: view.__setitem__(LARGE - 1, 7)


def dlpack(tensor: Any) -> Callable[[], Any]:
    alias = torch.utils.dlpack.from_dlpack(tensor.detach())
    return lambda: alias.add_(1)


def other_process(tensor: Any) -> Callable[[], Any]:
    tensor.share_memory_()

    def change() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch's threads
            pid = os.fork()
        if pid == 0:
            ctypes.memset(tensor.data_ptr() + 5, 7, 1)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0

    return change


def optimizer(tensor: Any) -> Callable[[], Any]:
    found = torch.optim.SGD([tensor], lr=1.0)
    tensor.grad = torch.ones_like(tensor)
    return found.step


ESCAPES: dict[str, Escape] = {
    "data": lambda tensor: lambda: tensor.data.add_(1),
    "older alias": older_alias,
    "numpy view": numpy_view,
    "dlpack": dlpack,
    "storage": lambda tensor: lambda: tensor.untyped_storage().__setitem__(3, 9),
    "foreach": lambda tensor: lambda: torch._foreach_add_([tensor.data], 1),
    "kernel": lambda tensor: lambda: ctypes.memset(tensor.data_ptr() + 4 * LARGE - 1, 7, 1),
    "other process": other_process,
    "optimizer": optimizer,
    "set_data": lambda tensor: lambda: setattr(tensor, "data", torch.ones(LARGE)),
}


@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES.keys())
def test_a_write_is_seen_however_it_is_made(escape: Escape, checkpoints: Checkpoints) -> None:
    tensor = torch.nn.Parameter(torch.zeros(LARGE))
    change = escape(tensor)
    first, leaves = checkpoints.take(tensor), checkpoints.leaves

    change()

    assert checkpoints.take(tensor) == [bytes_of(tensor)] != first
    assert checkpoints.read(leaves) == first


def test_the_array_under_a_tensor_is_seen_to_change(checkpoints: Checkpoints) -> None:
    array = np.zeros(LARGE)
    tensor = torch.from_numpy(array)
    first, version = checkpoints.take(tensor), tensor._version

    array[17] = 3

    assert tensor._version == version
    assert checkpoints.take(tensor) == [bytes_of(tensor)] != first


def test_batch_statistics_are_seen_to_change(checkpoints: Checkpoints) -> None:
    norm = torch.nn.BatchNorm1d(LARGE)
    buffers = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
    first = checkpoints.take(*buffers)

    norm(torch.rand(4, LARGE))

    second = checkpoints.take(*buffers)
    assert second == [bytes_of(item) for item in buffers]
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_a_tensor_that_is_resized_or_set_is_another_block(checkpoints: Checkpoints) -> None:
    tensor = torch.zeros(LARGE)
    checkpoints.take(tensor)

    tensor.resize_(2 * LARGE).fill_(1)
    assert checkpoints.take(tensor) == [bytes_of(tensor)]
    tensor.resize_(LARGE)
    assert checkpoints.take(tensor) == [bytes_of(tensor)]
    tensor.set_(torch.full((LARGE,), 5.0).untyped_storage(), 0, (LARGE,), (1,))
    assert checkpoints.take(tensor) == [bytes_of(tensor)]


def test_another_tensor_at_the_same_place_with_the_same_version(checkpoints: Checkpoints) -> None:
    """The allocator gives freed memory to the next tensor of that size."""
    memory = mmap.mmap(-1, 4 * LARGE)
    first = torch.frombuffer(memory, dtype=torch.float32)
    place = (first.data_ptr(), first._version)
    checkpoints.take(first)
    del first
    memory[:] = b"\7" * len(memory)
    second = torch.frombuffer(memory, dtype=torch.float32)

    assert (second.data_ptr(), second._version) == place
    assert checkpoints.take(second) == [memory[:]]


# --- blocks --------------------------------------------------------------------------------


def test_a_block_that_is_met_twice_is_one_leaf(checkpoints: Checkpoints) -> None:
    tensor = torch.rand(LARGE)
    staging = checkpoints.staging
    staging.begin()

    assert put(staging, tensor) == put(staging, tensor.data) == 0
    assert put(staging, tensor[:10]) == put(staging, tensor[:10]) == 1
    assert len(staging.end()) == 2


def test_blocks_that_overlap_are_leaves_of_their_own(checkpoints: Checkpoints) -> None:
    tensor = torch.rand(3 * LARGE)
    views = [tensor, tensor[:LARGE], tensor[LARGE:], tensor[5 : 5 + LARGE]]
    for _ in range(2):
        assert checkpoints.take(*views) == [bytes_of(view) for view in views]
        tensor.data.add_(1)


def test_blocks_that_are_gone_give_their_memory_back(checkpoints: Checkpoints) -> None:
    tensors = [torch.rand(LARGE) for _ in range(5)]
    arena = checkpoints.staging.arena
    checkpoints.take(*tensors)
    before = arena.used_bytes

    checkpoints.take(tensors[0])
    assert arena.used_bytes == before // 5
    checkpoints.take()
    assert arena.used_bytes == 0


def test_blocks_that_move_about_do_not_add_up(checkpoints: Checkpoints) -> None:
    kept = []
    for number in range(30):
        kept.append(torch.full((1_000_000,), float(number)))
        checkpoints.copy(kept[-1])

    assert checkpoints.staging.arena.reserved_bytes <= 64 * 1024 * 1024


def test_nothing_is_kept_alive_between_checkpoints(checkpoints: Checkpoints) -> None:
    tensor = torch.rand(LARGE)
    gone = weakref.ref(tensor)
    pending = checkpoints.copy(tensor, tensor[:5])
    del tensor

    assert gone() is None
    assert len(checkpoints.write(pending)) == 2


def test_much_is_copied_on_several_cores(checkpoints: Checkpoints) -> None:
    count = 2 * PARALLEL_BYTES // (4 * 250_000) + 3
    tensors = [torch.full((250_000 + k,), float(k)) for k in range(count)]

    pending = checkpoints.copy(*tensors)

    assert checkpoints.staging.copied_bytes == sum(tensor.nbytes for tensor in tensors)
    for item, tensor in zip(pending, tensors, strict=True):
        assert item.content == bytes_of(tensor)


def test_where_no_thread_can_start_one_core_copies_all(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    tensors = [torch.full((PARALLEL_BYTES // 4,), float(k)) for k in range(3)]

    pending = checkpoints.copy(*tensors)

    assert [item.content[-4:] for item in pending] == [bytes_of(t[-1:]) for t in tensors]


def test_no_memory_for_a_copy_is_said_and_the_next_one_is_whole(checkpoints: Checkpoints) -> None:
    tensor = torch.rand(LARGE)
    checkpoints.take(tensor)
    checkpoints.staging.begin()
    put(checkpoints.staging, tensor)
    checkpoints.staging.put_block(tensor.data_ptr(), 2**55, None, tensor)
    with pytest.raises(MemoryError):
        checkpoints.staging.end()
    tensor.data.add_(1)

    assert checkpoints.take(tensor) == [bytes_of(tensor)]


# --- small ones ----------------------------------------------------------------------------


def test_many_small_blocks_are_one_object(checkpoints: Checkpoints) -> None:
    blocks = [torch.full((1 + k % 50,), float(k)) for k in range(5000)]

    assert checkpoints.take(*blocks) == [bytes_of(block) for block in blocks]
    assert len({leaf.digest for leaf in checkpoints.leaves}) == 1


def test_small_ones_that_did_not_change_stay_in_their_object(checkpoints: Checkpoints) -> None:
    blocks = [torch.full((100,), float(k)) for k in range(20)]
    checkpoints.take(*blocks)
    before = checkpoints.leaves
    blocks[3].fill_(99)

    assert checkpoints.take(*blocks) == [bytes_of(block) for block in blocks]
    assert [k for k in range(20) if checkpoints.leaves[k] != before[k]] == [3]


# --- live ----------------------------------------------------------------------------------


def test_live_blocks_are_not_copied(checkpoints: Checkpoints) -> None:
    tensor = torch.zeros(LARGE)

    pending = checkpoints.copy(tensor, live=True)
    tensor.fill_(3)

    assert bytes(pending[0].content) == bytes_of(tensor)
    assert checkpoints.staging.arena.reserved_bytes == checkpoints.staging.copied_bytes == 0
    assert checkpoints.write(pending) == [bytes_of(tensor)]


def test_a_live_checkpoint_holds_its_blocks(checkpoints: Checkpoints) -> None:
    pending = checkpoints.copy(torch.full((LARGE,), 2.0), live=True)
    others = [torch.zeros(LARGE) for _ in range(5)]

    assert checkpoints.write(pending) == [bytes_of(torch.full((LARGE,), 2.0))]
    assert len(others) == 5


def test_forgetting_gives_the_memory_back(checkpoints: Checkpoints) -> None:
    tensor = torch.rand(LARGE)
    checkpoints.take(tensor)

    checkpoints.staging.forget()

    arena = checkpoints.staging.arena
    assert (arena.used_bytes, arena.reserved_bytes) == (0, 0)
    assert checkpoints.take(tensor) == [bytes_of(tensor)]


# --- in any order --------------------------------------------------------------------------

SIZES = (1, 100, SMALL_BYTES - 1, SMALL_BYTES, SMALL_BYTES + 1, 20 * PAGE, DIRECT_BYTES + 77)
ACTIONS = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 3), st.integers(0, 10**7)),
    st.tuples(st.just("replace"), st.integers(0, 3), st.sampled_from(SIZES)),
    st.tuples(st.just("take"), st.integers(0, 15), st.sampled_from([None, 0, 1])),
    st.tuples(st.just("take"), st.just(15), st.just(0)),
    st.tuples(st.just("fail"), st.integers(0, 15), st.sampled_from([None, 0, 1])),
    st.tuples(st.just("live"), st.integers(0, 15), st.none()),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(ACTIONS, max_size=25))
def test_each_checkpoint_is_the_state_of_its_time(actions: list[tuple[str, int, Any]]) -> None:
    """Four blocks at four places, of changing size; the versions mean nothing at all, and the
    training writes while a checkpoint is written."""
    places = [np.zeros(DIRECT_BYTES + PAGE, np.uint8) for _ in range(4)]
    blocks = [places[k][: SIZES[k + 2]] for k in range(4)]
    expected: list[tuple[list[Leaf], list[bytes]]] = []
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder))
        for action, number, argument in actions:
            if action == "write":
                blocks[number][argument % len(blocks[number])] += 1
            elif action == "replace":
                blocks[number] = places[number][:argument]
            else:
                chosen = [block for k, block in enumerate(blocks) if number >> k & 1]
                state = [block.tobytes() for block in chosen]
                checkpoints.staging.begin(live=action == "live")
                for block in chosen:
                    address = block.ctypes.data
                    checkpoints.staging.put_block(address, block.nbytes, argument, block)
                pending = checkpoints.staging.end()
                if action == "live":
                    checkpoints.write(pending)
                elif action == "take":
                    for block in chosen:
                        block ^= 255
                    checkpoints.write(pending)
                    for block in chosen:
                        block ^= 255
                if action != "fail":
                    expected.append((checkpoints.leaves, state))
        assert all(checkpoints.read(leaves) == state for leaves, state in expected)
