"""How busy the machine is, sampled when a checkpoint begins and when it is written."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from flor.checkpoint.policy import contention


class Load(NamedTuple):
    """Seconds by now: of the clock, of this process, and idle ones of all cores."""

    clock: float
    process: float
    idle: float | None


def sample() -> Load:
    return Load(time.perf_counter(), time.process_time(), _idle())


def felt(before: Load, after: Load, background_seconds: float) -> float:
    """Seconds that the training lost to the background, which worked so long in between."""
    clock = max(after.clock - before.clock, 1e-6)
    cores = _cores()
    busy = (after.process - before.process - background_seconds) / clock
    idle = cores - busy
    if before.idle is not None and after.idle is not None:
        idle = (after.idle - before.idle) / clock
    return background_seconds * contention(idle, cores, busy)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _idle() -> float | None:
    try:
        with open("/proc/stat", "rb") as lines:
            fields = lines.readline().split()
        return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
