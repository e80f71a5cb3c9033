"""How busy the machine is: flor.checkpoint.load."""

from __future__ import annotations

import builtins
import os
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flor.checkpoint import load
from flor.checkpoint.load import Load, felt

SECONDS = st.floats(0, 1e5)


def cores() -> int:
    return len(os.sched_getaffinity(0))


def test_a_sample_counts_this_process_and_the_clock() -> None:
    before = load.sample()
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    after = load.sample()

    assert after.clock - before.clock >= 0.04
    assert after.process - before.process >= 0.04
    assert before.idle is not None
    assert after.idle is not None
    assert after.idle >= before.idle


@given(SECONDS, SECONDS, st.none() | SECONDS, SECONDS)
def test_the_training_loses_no_more_than_the_background_worked(
    clock: float, process: float, idle: float | None, background: float
) -> None:
    before = Load(0.0, 0.0, None if idle is None else 0.0)
    lost = felt(before, Load(clock, process, idle), background)
    assert 0 <= lost <= background


def test_on_an_idle_machine_next_to_nothing_is_lost() -> None:
    lost = felt(Load(0, 0, 0), Load(1, 0.5, 0.6 * cores()), background_seconds=0.5)
    assert lost < 0.1


def test_on_a_full_machine_all_of_it_is_lost() -> None:
    lost = felt(Load(0, 0, 0), Load(1, cores(), 0), background_seconds=0.5)
    assert lost == 0.5


def test_a_process_that_fills_its_cores_gains_nothing_by_those_of_others() -> None:
    """The machine is idle, but this process is bound to few cores."""
    lost = felt(Load(0, 0, 0), Load(1, cores() + 0.5, 500), background_seconds=0.5)
    assert lost == 0.5


def test_without_the_system_s_idle_time_its_own_use_tells() -> None:
    assert felt(Load(0, 0, None), Load(1, cores() + 0.5, None), 0.5) == 0.5
    assert felt(Load(0, 0, None), Load(1, 0.5, None), 0.5) == 0.5 * 0.02


def test_no_time_at_all_is_no_division_by_zero() -> None:
    now = load.sample()
    assert felt(now, now, 0.0) == 0.0


@pytest.mark.parametrize("content", [None, b"", b"cpu\n", b"cpu a b c d e f\n"])
def test_a_system_that_does_not_tell_its_idle_time(
    content: bytes | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    real = builtins.open

    def opened(path: Any, *args: Any, **options: Any) -> Any:
        if path == "/proc/stat":
            path = tmp_path / "stat"
        return real(path, *args, **options)

    if content is not None:
        (tmp_path / "stat").write_bytes(content)
    monkeypatch.setattr(builtins, "open", opened)

    assert load.sample().idle is None
