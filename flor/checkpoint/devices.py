"""Copies of CUDA tensors, without making the training wait for them.

With room on the device, the tensors are gathered into one clone there, which takes a millisecond or
two, and a side stream brings it to pinned memory while the training goes on. Without, the side
stream copies the tensors themselves, and the training's stream waits for that. Events order the
streams; only the background ever waits for one.

Pinned memory is made of ordinary pages, in the background and piece by piece: asking CUDA for all
of it at once would hold up every call of the training for more than a second. The clone is given
back as soon as the host has it, so that a training that grows finds that memory.
"""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flor.checkpoint import memory
from flor.checkpoint.staging import Staging

PIECE_BYTES = 64 * 1024 * 1024  # pinned at a time; one copy may not cross from piece to piece
FAULT_BYTES = 16 * 1024 * 1024
PAGED_BYTES = 1024 * 1024  # larger tensors begin on a page: O_DIRECT wants it
SPARE = 0.1  # of the device's memory, left to the training
USUAL = ("float32", "bfloat16", "float16", "float64", "int64")  # other types go as bytes
PORTABLE = 1  # pinned for all devices
RELAXED = 2  # capture mode: what this thread calls is not forbidden while another one captures


class Pinned:
    """Memory of the host that a device copies into by itself."""

    def __init__(self, size_bytes: int) -> None:
        self.segment = memory.Segment(size_bytes)
        self._registered: list[int] = []
        weakref.finalize(self, _unregister, os.getpid(), self._registered).atexit = False

    def fill(self) -> Iterator[None]:
        """Fault it in and pin it, some at each step. Where it cannot be pinned copies are slow."""
        segment, refused = self.segment, False
        for start in range(0, segment.size_bytes, PIECE_BYTES):
            address = segment.address + start
            size_bytes = min(PIECE_BYTES, segment.size_bytes - start)
            for offset in range(0, size_bytes, FAULT_BYTES):
                memory.fault_in(address + offset, min(FAULT_BYTES, size_bytes - offset))
                yield
            if not refused:
                with _any_capture():
                    refused = not _register(address, size_bytes)
                if not refused:
                    self._registered.append(address)
            yield

    def view(self, offset: int, size_bytes: int) -> memoryview:
        return memory.view(self.segment.address + offset, size_bytes)

    def pieces(self, offset: int, size_bytes: int) -> Iterator[tuple[int, Any]]:
        """The parts of a range that can be copied at once: where each begins in it, and bytes."""
        torch = sys.modules["torch"]
        place, end = offset, offset + size_bytes
        while place < end:
            stop = min(end, (place // PIECE_BYTES + 1) * PIECE_BYTES)
            bytes_of = memory.view(self.segment.address + place, stop - place, writable=True)
            yield place - offset, torch.frombuffer(bytes_of, dtype=torch.uint8)
            place = stop


@dataclass
class Flat:
    """The tensors of one device for one checkpoint, and their copies one behind the other."""

    device: Any
    stream: Any
    host: Pinned | None = None
    growing: bool = False
    tensors: list[Any] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)  # of their leaves
    seen: dict[tuple[int, int], int] = field(default_factory=dict)
    size_bytes: int = 0
    clones: list[Any] = field(default_factory=list)
    copied: Any = None  # event: the host has it


class CudaDevices:
    """Stages the tensors of one checkpoint after the other: `begin`, `put` them, then `launch`.

    The writer rests meanwhile, so that the memory of the checkpoint before is free again.
    """

    def __init__(self) -> None:
        self._flats: dict[int, Flat] = {}

    def reserve(self, sizes: Mapping[int, int] | None = None) -> Iterator[None]:
        """Pinned memory for so many bytes of each device; without sizes, for what `put` saw."""
        if sizes is None:
            sizes = {index: _needed(flat) for index, flat in self._flats.items()}
        for index, size_bytes in sizes.items():
            flat = self._flat(sys.modules["torch"].device("cuda", index))
            if _room_of(flat) < size_bytes and not flat.growing:
                flat.growing, flat.host = True, None
                try:
                    host = Pinned(size_bytes + size_bytes // 16)
                    yield from host.fill()
                    flat.host = host
                finally:
                    flat.growing = False

    def begin(self) -> None:
        for flat in self._flats.values():
            flat.tensors, flat.numbers, flat.seen = [], [], {}
            flat.size_bytes, flat.clones, flat.copied = 0, [], None

    def put(self, staging: Staging, tensor: Any) -> int:
        """The number of the tensor's leaf; its bytes come later."""
        flat = self._flats.get(tensor.device.index) or self._flat(tensor.device)
        size_bytes = tensor.nbytes
        key = (tensor.data_ptr(), size_bytes)
        number = flat.seen.get(key)
        if number is None:
            number = flat.seen[key] = staging.put_later()
            flat.numbers.append(number)
            flat.tensors.append(tensor)
            flat.size_bytes += size_bytes + (memory.PAGE if size_bytes >= PAGED_BYTES else 0)
        return number

    def fits(self) -> bool:
        """Whether the pinned memory is there; `reserve` makes it."""
        return all(_room_of(flat) >= _needed(flat) for flat in self._flats.values() if flat.tensors)

    def launch(self, staging: Staging) -> None:
        """Start the copies, and tell the leaves where their bytes will be."""
        torch = sys.modules["torch"]
        for flat in self._flats.values():
            if flat.tensors:
                with torch.cuda.device(flat.device), torch.no_grad():
                    self._copy(flat, staging, torch)
            flat.tensors, flat.seen = [], {}

    def release(self) -> None:
        """Give the memory back; in the background, while the script may do anything."""
        with _any_capture():
            for flat in self._flats.values():
                if flat.copied is not None:
                    with suppress(Exception):  # of a device that has failed
                        flat.copied.synchronize()
            self._flats = {}

    def _flat(self, device: Any) -> Flat:
        index = device.index or 0
        if index not in self._flats:
            torch = sys.modules["torch"]
            with _any_capture():
                self._flats[index] = Flat(device, torch.cuda.Stream(device))
        return self._flats[index]

    def _copy(self, flat: Flat, staging: Staging, torch: Any) -> None:
        assert flat.host is not None
        current, groups = torch.cuda.current_stream(), _groups(flat, torch)
        flat.copied = torch.cuda.Event()
        there = self._has_room(flat, torch)
        if there:
            try:
                flat.clones = [torch.cat(group.sources) for group in groups]
            except torch.cuda.OutOfMemoryError:
                there, flat.clones = False, []
        flat.stream.wait_stream(current)
        with torch.cuda.stream(flat.stream):
            if there:
                for group, clone in zip(groups, flat.clones, strict=True):
                    _to_host(flat.host, group.begin, clone, torch)
            else:
                for group in groups:
                    for _, offset, source in group.places:
                        _to_host(flat.host, offset, source, torch)
            flat.copied.record()
        if not there:
            current.wait_event(flat.copied)  # what follows may change the tensors
        for group in groups:
            for index, offset, source in group.places:
                size_bytes = source.nbytes
                ready = partial(_bytes_of, flat, flat.host, offset, size_bytes)
                paged = offset % memory.PAGE == 0
                staging.arrives(flat.numbers[index], size_bytes, ready, paged=paged)

    def _has_room(self, flat: Flat, torch: Any) -> bool:
        """Whether a clone leaves the training enough of the device."""
        free, total = torch.cuda.mem_get_info(flat.device)
        return bool(free - flat.size_bytes >= SPARE * total)


@dataclass
class _Group:
    """Tensors of one type, as they will lie behind each other from `begin` on."""

    begin: int
    size_bytes: int = 0
    sources: list[Any] = field(default_factory=list)  # in one row, padding included
    places: list[tuple[int, int, Any]] = field(default_factory=list)  # number, offset, numbers


def _groups(flat: Flat, torch: Any) -> list[_Group]:
    """Large tensors come first, each on a page; then the small ones."""
    found: dict[Any, _Group] = {}
    usual = {getattr(torch, name) for name in USUAL}
    rows = [_row(tensor, usual, torch) for tensor in flat.tensors]
    order = sorted(range(len(rows)), key=lambda index: rows[index].nbytes < PAGED_BYTES)
    pads: dict[Any, Any] = {}
    for index in order:
        found.setdefault(rows[index].dtype, _Group(0))
    begin = 0
    for dtype, group in found.items():
        group.begin = begin
        for index in order:
            row = rows[index]
            if row.dtype is not dtype:
                continue
            size_bytes = row.nbytes
            missing = -group.size_bytes % memory.PAGE if size_bytes >= PAGED_BYTES else 0
            if missing:
                if dtype not in pads:
                    zeros = torch.zeros(memory.PAGE, dtype=torch.uint8, device=flat.device)
                    pads[dtype] = zeros.view(dtype)
                group.sources.append(pads[dtype][: missing // row.element_size()])
                group.size_bytes += missing
            group.places.append((index, begin + group.size_bytes, row))
            group.sources.append(row)
            group.size_bytes += size_bytes
        begin += -(-group.size_bytes // memory.PAGE) * memory.PAGE
    return list(found.values())


def _row(tensor: Any, usual: set[Any], torch: Any) -> Any:
    """Its numbers in the order in which they lie; of unusual types, their bytes."""
    row = tensor.view(-1) if tensor.is_contiguous() else tensor.as_strided((tensor.numel(),), (1,))
    return row if row.dtype in usual else row.view(torch.uint8)


def _to_host(host: Pinned, offset: int, source: Any, torch: Any) -> None:
    content = source.view(torch.uint8)
    for begin, place in host.pieces(offset, content.numel()):
        place.copy_(content[begin : begin + place.numel()], non_blocking=True)


def _bytes_of(flat: Flat, host: Pinned, offset: int, size_bytes: int) -> memoryview:
    """For the writer: wait for the device, and give its memory back."""
    if flat.copied is not None:
        with _any_capture():
            flat.copied.synchronize()
        flat.clones = []
    return host.view(offset, size_bytes)


def _needed(flat: Flat) -> int:
    return flat.size_bytes + (len(USUAL) + 1) * memory.PAGE  # each type begins on a page


def _room_of(flat: Flat) -> int:
    return flat.host.segment.size_bytes if flat.host is not None else 0


def _register(address: int, size_bytes: int) -> bool:
    cudart = sys.modules["torch"].cuda.cudart()
    return int(cudart.cudaHostRegister(address, size_bytes, PORTABLE)) == 0


def _unregister(pid: int, addresses: list[int]) -> None:
    if os.getpid() == pid:  # else a forked child, which never had it
        cudart = sys.modules["torch"].cuda.cudart()
        for address in addresses:
            cudart.cudaHostUnregister(address)


@contextmanager
def _any_capture() -> Iterator[None]:
    """Let this thread call CUDA while the training captures a graph, without breaking that."""
    exchange = _exchange()
    if exchange is None:
        yield
        return
    mode = ctypes.c_int(RELAXED)
    exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


def _exchange() -> Any:
    if not _driver:
        try:
            found = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
        except (OSError, AttributeError):
            found = None
        _driver.append(found)
    return _driver[0]


_driver: list[Any] = []  # the driver's function, once it was looked for


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured here: nothing may be asked of the device then."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and cuda.is_initialized() and bool(cuda.is_current_stream_capturing())


def for_this_process() -> CudaDevices | None:
    """If the script uses CUDA. Asking starts nothing."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return CudaDevices() if cuda is not None and cuda.is_initialized() else None
