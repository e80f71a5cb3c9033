"""Copies of CUDA tensors: flor.checkpoint.devices."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from flor.checkpoint import devices as module
from flor.checkpoint.devices import CudaDevices, for_this_process
from flor.checkpoint.memory import PAGE
from flor.checkpoint.staging import Pending, Staging

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

MIB = 1024 * 1024
TYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.complex64),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float8_e4m3fn),
]


class Checkpoints:
    """Copies tensors, and waits for their bytes."""

    def __init__(self) -> None:
        self.staging = Staging()
        self.devices = CudaDevices()
        self.numbers: list[int] = []

    def launch(self, *tensors: Any) -> list[Pending]:
        self.put(*tensors)
        self.devices.launch(self.staging)
        return self.staging.end()

    def put(self, *tensors: Any) -> None:
        self.note(*tensors)
        if not self.devices.fits():
            for _ in self.devices.reserve():
                pass
            self.note(*tensors)

    def note(self, *tensors: Any) -> None:
        self.staging.begin()
        self.devices.begin()
        self.numbers = [self.devices.put(self.staging, tensor) for tensor in tensors]

    def read(self, pending: list[Pending]) -> list[bytes]:
        """The bytes of each tensor that was put."""
        return [bytes(pending[number].bytes()) for number in self.numbers]

    def take(self, *tensors: Any) -> list[bytes]:
        return self.read(self.launch(*tensors))


@pytest.fixture
def checkpoints() -> Iterator[Checkpoints]:
    found = Checkpoints()
    yield found
    found.devices.release()


@pytest.fixture(params=["clone", "no room", "no room after all"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the device has room for a second copy."""
    if request.param == "no room":
        total = torch.cuda.mem_get_info()[1]
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *device: (0, total))
    elif request.param == "no room after all":

        def cat(tensors: Any) -> Any:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

        monkeypatch.setattr(torch, "cat", cat)
    return str(request.param)


def bytes_of(tensor: Any) -> bytes:
    """Its memory, as it lies."""
    torch.cuda.synchronize()
    row = tensor.detach().as_strided((tensor.numel(),), (1,))
    return bytes(row.view(torch.uint8).cpu().numpy().tobytes())


def filled(size: int, dtype: Any = torch.float32) -> Any:
    return torch.randint(0, 100, (size,), device="cuda").float().to(dtype)


@pytest.mark.usefixtures("room")
def test_what_the_training_writes_right_afterwards_is_not_in_the_copy(
    checkpoints: Checkpoints,
) -> None:
    """Nobody waits in between: the device orders it."""
    tensors = [filled(size) for size in (1, 1000, 5 * MIB, 40 * MIB)]
    for _ in range(3):
        before = [bytes_of(tensor) for tensor in tensors]
        pending = checkpoints.launch(*tensors)
        for tensor in tensors:
            tensor.mul_(2).add_(1)
        found = checkpoints.read(pending)
        assert found == before
        assert [bytes_of(tensor) for tensor in tensors] != before


@pytest.mark.usefixtures("room")
def test_tensors_that_are_freed_and_made_again_right_afterwards(checkpoints: Checkpoints) -> None:
    """The allocator gives their memory to the next ones."""
    tensors = [filled(4 * MIB) for _ in range(4)]
    before = [bytes_of(tensor) for tensor in tensors]

    pending = checkpoints.launch(*tensors)
    del tensors
    others = [torch.full((4 * MIB,), -1.0, device="cuda") for _ in range(8)]

    assert checkpoints.read(pending) == before
    assert len(others) == 8


@pytest.mark.usefixtures("room")
def test_work_that_is_still_queued_is_in_the_copy(checkpoints: Checkpoints) -> None:
    tensor = torch.ones(8 * MIB, device="cuda")
    checkpoints.take(tensor)
    weights = torch.eye(2048, device="cuda")
    for _ in range(50):
        weights = weights @ weights
    tensor.add_(weights[0, 0])

    assert checkpoints.take(tensor) == [bytes_of(torch.full((8 * MIB,), 2.0, device="cuda"))]


@pytest.mark.usefixtures("room")
def test_every_type_and_size(checkpoints: Checkpoints) -> None:
    """Side by side, so that each has to find its own place."""
    sizes = (1, 7, 300_001, MIB + 3)
    tensors = [filled(size, dtype) for dtype in TYPES for size in sizes]

    assert checkpoints.take(*tensors) == [bytes_of(tensor) for tensor in tensors]


@pytest.mark.usefixtures("room")
def test_tensors_whose_numbers_lie_in_another_order(checkpoints: Checkpoints) -> None:
    image = torch.rand(8, 3, 65, 33, device="cuda").to(memory_format=torch.channels_last)
    tensors = [
        image,
        torch.rand(700, 900, device="cuda").t(),
        torch.rand(3, 5, 7, device="cuda", dtype=torch.float64).permute(2, 0, 1),
        torch.zeros(400, 300, device="cuda", dtype=torch.bool).t(),
        torch.rand(100, device="cuda")[3:50],
        torch.tensor(3.5, device="cuda"),
    ]
    assert not any(tensor.is_contiguous() for tensor in tensors[:4])

    assert checkpoints.take(*tensors) == [bytes_of(tensor) for tensor in tensors]


@pytest.mark.usefixtures("room")
def test_parameters_and_gradients(checkpoints: Checkpoints) -> None:
    """As they are, with their graph, and never a part of it."""
    layer = torch.nn.Linear(1000, 1000, device="cuda")
    layer(torch.rand(5, 1000, device="cuda")).sum().backward()
    tensors = [layer.weight.detach(), layer.bias.detach(), layer.weight.grad]

    assert checkpoints.take(*tensors) == [bytes_of(tensor) for tensor in tensors]


def test_tied_tensors_are_one_leaf(checkpoints: Checkpoints) -> None:
    tensor, other = filled(MIB), filled(MIB)

    found = checkpoints.take(tensor, other, tensor.data, tensor[:5])

    first, second, again, part = checkpoints.numbers
    assert first == again
    assert len({first, second, part}) == 3
    assert found == [bytes_of(item) for item in (tensor, other, tensor, tensor[:5])]


def test_large_tensors_begin_on_a_page(checkpoints: Checkpoints) -> None:
    tensors = [filled(size) for size in (3, MIB + 1, 5, 2 * MIB + 7)]
    pending = checkpoints.launch(*tensors)

    assert [pending[number].paged for number in checkpoints.numbers[1::2]] == [True, True]
    assert [pending[number].size_bytes for number in checkpoints.numbers] == [
        tensor.nbytes for tensor in tensors
    ]


def test_a_second_checkpoint_uses_the_memory_of_the_first(checkpoints: Checkpoints) -> None:
    tensors = [filled(4 * MIB) for _ in range(4)]
    checkpoints.take(*tensors)
    places = [flat.host for flat in checkpoints.devices._flats.values()]
    torch.cuda.empty_cache()
    allocated = torch.cuda.memory_allocated()

    for _ in range(5):
        for tensor in tensors:
            tensor.add_(1)
        assert checkpoints.take(*tensors) == [bytes_of(tensor) for tensor in tensors]

    assert [flat.host for flat in checkpoints.devices._flats.values()] == places
    assert torch.cuda.memory_allocated() == allocated


def test_the_clone_is_given_back_once_the_host_has_it(checkpoints: Checkpoints) -> None:
    tensor = filled(16 * MIB)
    checkpoints.take(tensor)
    before = torch.cuda.memory_allocated()

    pending = checkpoints.launch(tensor)
    assert torch.cuda.memory_allocated() >= before + tensor.nbytes
    checkpoints.read(pending)

    assert torch.cuda.memory_allocated() == before


def test_a_state_that_grows_and_shrinks(checkpoints: Checkpoints) -> None:
    for size in (1, 1000, 5 * MIB, 3, 30 * MIB, 100):
        tensors = [filled(size), filled(size + 1, torch.float16)]
        assert checkpoints.take(*tensors) == [bytes_of(tensor) for tensor in tensors]


def test_a_copy_that_crosses_pinned_pieces(checkpoints: Checkpoints) -> None:
    size = module.PIECE_BYTES // 4
    tensors = [filled(size - 5), filled(3 * size + 1), filled(10)]

    assert checkpoints.take(*tensors) == [bytes_of(tensor) for tensor in tensors]


def test_no_leaf_lies_outside_of_the_pinned_memory(checkpoints: Checkpoints) -> None:
    """Types that have only small tensors, in memory that is filled to the last page."""
    for _ in checkpoints.devices.reserve({0: 3 * MIB}):
        pass
    host = checkpoints.devices._flats[0].host
    assert host is not None
    small = [filled(1, dtype) for dtype in TYPES if dtype is not torch.uint8]
    room = host.segment.size_bytes - sum(item.nbytes for item in small) - PAGE
    checkpoints.put(filled(room, torch.uint8), *small)
    host = checkpoints.devices._flats[0].host
    assert host is not None

    checkpoints.devices.launch(checkpoints.staging)

    end = host.segment.address + host.segment.size_bytes
    for item in checkpoints.staging.end():
        address = np.frombuffer(item.bytes(), np.uint8).ctypes.data
        assert host.segment.address <= address
        assert address + item.size_bytes <= end


def test_a_checkpoint_that_was_given_up_leaves_no_trace(checkpoints: Checkpoints) -> None:
    """Encoding failed before the copies were launched."""
    stale, tensor = filled(MIB), filled(MIB)
    checkpoints.take(tensor)
    checkpoints.note(stale, tensor)

    assert checkpoints.take(tensor) == [bytes_of(tensor)]
    assert checkpoints.numbers == [0]


def test_a_checkpoint_whose_bytes_nobody_asked_for(checkpoints: Checkpoints) -> None:
    """The disk was full before it was their turn."""
    tensor = filled(16 * MIB)
    checkpoints.launch(tensor)
    tensor.add_(1)

    assert checkpoints.take(tensor) == [bytes_of(tensor)]


class RefusingRuntime:
    """CUDA's runtime, but it pins nothing."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def cudaHostRegister(self, address: int, size_bytes: int, flags: int) -> int:
        return 1


def test_without_pinning_copies_are_slow_but_right(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may not lock memory."""
    refusing = RefusingRuntime(torch.cuda.cudart())
    monkeypatch.setattr(torch.cuda, "cudart", lambda: refusing)
    tensor = filled(4 * MIB)
    before = bytes_of(tensor)

    pending = checkpoints.launch(tensor)
    tensor.add_(1)

    assert checkpoints.read(pending) == [before]


def test_released_memory_is_no_longer_pinned() -> None:
    """The same addresses can be pinned again and again."""
    for _ in range(20):
        checkpoints = Checkpoints()
        tensor = filled(MIB)
        assert checkpoints.take(tensor) == [bytes_of(tensor)]
        checkpoints.devices.release()
        del checkpoints
        gc.collect()


def test_nothing_stays_on_the_device(checkpoints: Checkpoints) -> None:
    gc.collect()
    before = torch.cuda.memory_allocated()
    checkpoints.take(filled(8 * MIB))
    gc.collect()
    assert torch.cuda.memory_allocated() == before


def test_a_script_that_uses_the_device_has_its_copies() -> None:
    torch.cuda.init()
    assert isinstance(for_this_process(), CudaDevices)
