"""When a checkpoint is worth its cost: flor.checkpoint.policy."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flor.checkpoint.policy import RESTORE_FACTOR, Policy, contention

SECONDS = st.floats(0, 1e4, allow_subnormal=False)
COSTS = st.floats(1e-6, 1e3)
OVERHEADS = st.floats(0, 1)
SLACK = 1e-9  # of sums in floating point


def known(overhead: float, cost: float) -> Policy:
    """A policy that expects the true cost."""
    return Policy(overhead, expected_seconds=cost)


@given(OVERHEADS, COSTS, st.lists(SECONDS, max_size=30))
def test_a_training_never_pays_more_than_its_share(
    overhead: float, cost: float, iterations: list[float]
) -> None:
    """All checkpoints with the final one, unless it is the only one."""
    policy = known(overhead, cost)
    for seconds in iterations:
        policy.trained(seconds)
        if policy.wants():
            policy.paid(cost)
    before = policy.checkpoints
    policy.paid(cost)

    if before:
        share = min(overhead, 1 / (1 + RESTORE_FACTOR))
        assert policy.spent_seconds <= share * sum(iterations) * (1 + SLACK)


@given(OVERHEADS, st.lists(st.tuples(SECONDS, COSTS, COSTS), max_size=30))
def test_a_misjudged_cost_is_paid_once(
    overhead: float, iterations: list[tuple[float, float, float]]
) -> None:
    """Whatever checkpoints really cost, the share is exceeded by no more than one of them was
    dearer than expected."""
    policy, trained, misjudged = Policy(overhead, expected_seconds=1.0), 0.0, 0.0
    for seconds, cost, expected in iterations:
        policy.trained(seconds)
        trained += seconds
        policy.expected_seconds = expected
        if policy.wants():
            policy.paid(cost)
            misjudged = max(misjudged, cost - 2 * expected)
    assert policy.spent_seconds <= overhead * trained * (1 + SLACK) + max(misjudged, 0)


@given(OVERHEADS, COSTS, SECONDS, SECONDS)
def test_the_seconds_of_the_running_iteration_count(
    overhead: float, cost: float, before: float, so_far: float
) -> None:
    inside, after = known(overhead, cost), known(overhead, cost)
    inside.trained(before)
    after.trained(before)
    after.trained(so_far)

    assert inside.wants(so_far) == after.wants()


@given(COSTS, SECONDS, SECONDS)
def test_more_training_never_makes_a_checkpoint_unwelcome(
    cost: float, seconds: float, more: float
) -> None:
    policy = known(0.1, cost)
    policy.trained(seconds)
    if policy.wants():
        policy.trained(more)
        assert policy.wants()


@given(SECONDS, COSTS)
def test_with_no_overhead_only_the_final_state_is_taken(seconds: float, cost: float) -> None:
    policy = known(0.0, cost)
    policy.trained(seconds)
    assert not policy.wants()
    assert not Policy(0.0).wants(1e9)


def test_without_a_limit_every_iteration_is_taken() -> None:
    policy = known(math.inf, 1e9)

    assert policy.unlimited
    assert policy.wants()
    policy.paid(1e9)
    assert policy.wants()


def test_one_more_checkpoint_is_held_in_reserve() -> None:
    # 1 s each, a tenth of the time: two of them are worth it from the 20th second on
    policy = known(0.1, 1.0)
    policy.trained(20.0)
    assert not policy.wants()
    policy.trained(0.001)
    assert policy.wants()


def test_replaying_from_checkpoints_must_be_faster_than_training_again() -> None:
    """However much may be spent: a checkpoint and its restoring take less than an iteration."""
    policy = known(0.99, 1.0)
    policy.trained(2 * (1 + RESTORE_FACTOR))
    assert not policy.wants()
    policy.trained(0.001)
    assert policy.wants()


def test_a_clock_that_goes_back_takes_no_time_away() -> None:
    policy = known(0.1, 1.0)
    policy.trained(100.0)
    policy.trained(-50.0)
    assert (policy.trained_seconds, policy.iterations) == (100.0, 2)


def test_the_first_guess_is_made_once_and_ends_with_the_first_checkpoint() -> None:
    policy = Policy(0.1)
    policy.expect(2_000_000_000, contention=0.0)
    assert policy.expected_seconds == pytest.approx(1.0)
    policy.expect(10**12, contention=1.0)
    assert policy.expected_seconds == pytest.approx(1.0)

    policy.paid(0.25)
    assert policy.expected_seconds == 0.25


def test_contention_makes_the_first_guess_dearer() -> None:
    idle, crowded = Policy(0.1), Policy(0.1)
    idle.expect(10**9, 0.0)
    crowded.expect(10**9, 1.0)
    assert idle.expected_seconds is not None
    assert crowded.expected_seconds is not None
    assert crowded.expected_seconds > 5 * idle.expected_seconds


@given(st.lists(COSTS, min_size=2, max_size=20))
def test_the_next_cost_is_expected_between_those_that_were_paid(costs: list[float]) -> None:
    policy = Policy(0.1)
    for cost in costs:
        policy.paid(cost)

    assert policy.expected_seconds is not None
    assert min(costs) * (1 - SLACK) <= policy.expected_seconds <= max(costs) * (1 + SLACK)
    assert policy.spent_seconds == pytest.approx(sum(costs))


# --- contention ----------------------------------------------------------------------------

CORES = st.floats(0, 256)


@given(st.floats(-10, 256), st.integers(1, 256), st.floats(-1, 300))
def test_contention_is_a_share(idle: float, cores: int, busy: float) -> None:
    assert 0.02 <= contention(idle, cores, busy) <= 1


@given(CORES, CORES, st.integers(1, 256), CORES)
def test_more_idle_cores_are_less_contention(a: float, b: float, cores: int, busy: float) -> None:
    fewer, more = sorted((a, b))
    assert contention(more, cores, busy) <= contention(fewer, cores, busy)


@given(CORES, st.integers(1, 256), CORES, CORES)
def test_a_busier_process_is_more_contention(idle: float, cores: int, a: float, b: float) -> None:
    calm, busy = sorted((a, b))
    assert contention(idle, cores, calm) <= contention(idle, cores, busy)


@pytest.mark.parametrize(
    ("idle", "cores", "busy", "expected"),
    [
        (0.0, 2, 2.0, 1.0),
        (0.5, 2, 1.0, 0.02),
        (0.25, 2, 1.0, 0.5),
        (64.0, 2, 2.0, 1.0),  # idle cores that this process may not use
        (64.0, 2, 1.0, 0.02),
    ],
)
def test_contention(idle: float, cores: int, busy: float, expected: float) -> None:
    assert contention(idle, cores, busy) == pytest.approx(expected)
