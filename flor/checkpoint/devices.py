"""Copies of CUDA tensors, without making the training wait for them.

With room on the device, the tensors are cloned there, which is quick, and a side stream brings the
clone to pinned memory while the training goes on. Without, the side stream copies the tensors
themselves, and the training's stream waits for that. Events order the streams; only the background
ever waits for one.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from flor.checkpoint import memory
from flor.checkpoint.staging import Staging

ALIGNMENT = 512  # of each tensor in the flat copy, as the device's allocator has it
SPARE = 0.1  # of the device's memory, left to the training


@dataclass
class Flat:
    """The copies of one device's tensors, one behind the other, on the host and maybe there."""

    device: Any
    stream: Any
    host: Any = None  # pinned
    clone: Any = None  # on the device; None if there is no room for it
    places: dict[tuple[int, int], int] = field(default_factory=dict)
    tensors: list[tuple[Any, int]] = field(default_factory=list)  # and their offsets
    size_bytes: int = 0
    copied: Any = None  # event: the host has it


class CudaDevices:
    """Stages the tensors of one checkpoint after the other: `put` them, then `launch` the copies.

    The writer rests meanwhile, so that the memory of the checkpoint before is free again.
    """

    def __init__(self) -> None:
        self._flats: dict[int, Flat] = {}
        self._waiting: list[tuple[Staging, int, Flat, int, int]] = []

    def put(self, staging: Staging, tensor: Any) -> int:
        """The number of the tensor's leaf; its bytes come later."""
        flat = self._flat(tensor.device)
        size_bytes = tensor.numel() * tensor.element_size()
        offset = flat.places.get((tensor.data_ptr(), size_bytes))
        if offset is None:
            offset = flat.size_bytes
            flat.places[tensor.data_ptr(), size_bytes] = offset
            flat.tensors.append((tensor, offset))
            flat.size_bytes += -(-size_bytes // ALIGNMENT) * ALIGNMENT
        number = staging.put_later(memoryview(b""), lambda: self._wait(flat), tensor)
        self._waiting.append((staging, number, flat, offset, size_bytes))
        return number

    def launch(self) -> None:
        """Start the copies and give the leaves their memory. May raise for want of memory."""
        waiting, self._waiting = self._waiting, []
        for flat in self._flats.values():
            if flat.tensors:
                self._copy(flat)
        for staging, number, flat, offset, size_bytes in waiting:
            content = memory.view(flat.host.data_ptr() + offset, size_bytes)
            staging.pending[number].content = content
            staging.pending[number].keep = flat.host

    def _flat(self, device: Any) -> Flat:
        flat = self._flats.get(device.index)
        if flat is None:
            torch = sys.modules["torch"]
            flat = self._flats[device.index] = Flat(device, torch.cuda.Stream(device))
        if flat.copied is not None:  # of the checkpoint before
            flat.places, flat.tensors, flat.size_bytes, flat.copied = {}, [], 0, None
        return flat

    def _copy(self, flat: Flat) -> None:
        torch = sys.modules["torch"]
        if flat.host is None or flat.host.numel() < flat.size_bytes:
            flat.host = torch.empty(flat.size_bytes, dtype=torch.uint8, pin_memory=True)
        with torch.cuda.device(flat.device), torch.no_grad():
            current = torch.cuda.current_stream()
            flat.copied = torch.cuda.Event()
            if self._has_room(flat, torch):
                self._copy_into(flat.clone, flat, torch)
                flat.stream.wait_stream(current)
                with torch.cuda.stream(flat.stream):
                    flat.host[: flat.size_bytes].copy_(
                        flat.clone[: flat.size_bytes], non_blocking=True
                    )
                    flat.copied.record()
            else:
                flat.stream.wait_stream(current)
                with torch.cuda.stream(flat.stream):
                    self._copy_into(flat.host, flat, torch)
                    flat.copied.record()
                current.wait_event(flat.copied)  # what follows may change the tensors
        flat.tensors = []

    def _copy_into(self, target: Any, flat: Flat, torch: Any) -> None:
        """One launch for all tensors of a type where they stay on the device."""
        by_type: dict[Any, tuple[list[Any], list[Any]]] = {}
        for tensor, offset in flat.tensors:
            size_bytes = tensor.numel() * tensor.element_size()
            place = target[offset : offset + size_bytes].view(tensor.dtype)
            if tensor.is_contiguous():
                source = tensor.reshape(-1)
            else:  # dense in another order; its memory is copied as it lies
                source = tensor.as_strided((tensor.numel(),), (1,))
            if target.device == tensor.device:
                targets, sources = by_type.setdefault(tensor.dtype, ([], []))
                targets.append(place)
                sources.append(source)
            else:
                place.copy_(source, non_blocking=True)
        for targets, sources in by_type.values():
            torch._foreach_copy_(targets, sources)

    def _has_room(self, flat: Flat, torch: Any) -> bool:
        """Whether the clone has its memory, taken only if that leaves the training enough."""
        if flat.clone is not None and flat.clone.numel() >= flat.size_bytes:
            return True
        flat.clone = None
        free, total = torch.cuda.mem_get_info(flat.device)
        if free - flat.size_bytes < SPARE * total:
            return False
        flat.clone = torch.empty(flat.size_bytes, dtype=torch.uint8, device=flat.device)
        return True

    def _wait(self, flat: Flat) -> None:
        if flat.copied is not None:
            flat.copied.synchronize()


def for_this_process() -> CudaDevices | None:
    """If the script uses CUDA. Asking starts nothing."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized() or cuda.is_current_stream_capturing():
        return None
    return CudaDevices()
