"""Which checkpoints stay."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flor.store.retention import (
    KEPT,
    KEPT_ALIVE,
    Held,
    HeldRun,
    Instance,
    freed_by,
    halve,
    keep_evenly,
    plan_thinning,
    thin,
)

LOOP = Instance(0, 1)
ITERATIONS = st.lists(st.integers(0, 300), min_size=1, max_size=60)


def held(run_id: str, iteration: int, *objects: str, loop: int = 1, pinned: bool = False) -> Held:
    """A checkpoint whose manifest is the object `run/loop/iteration`."""
    manifest = f"{run_id}/{loop}/{iteration}"
    needs = frozenset({manifest, *objects})
    return Held(run_id, iteration, manifest, Instance(0, loop), iteration, needs, pinned)


def run(run_id: str, count: int, alive: bool = False, size: str = "own") -> HeldRun:
    """A run with `count` checkpoints, each of which has one object for itself."""
    checkpoints = (held(run_id, i, f"{run_id}/{size}/{i}") for i in range(count))
    return HeldRun(run_id, tuple(checkpoints), alive)


def sizes_of(*runs: HeldRun, size_bytes: int = 10) -> dict[str, int]:
    return {d: size_bytes for r in runs for c in r.checkpoints for d in c.objects if "own" in d}


def left(runs: list[HeldRun], retired: tuple[Held, ...]) -> dict[str, list[int]]:
    """The iterations of each run that stay."""
    return {r.run_id: [c.iteration for c in r.checkpoints if c not in retired] for r in runs}


# --- thin ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("iterations", "keep", "kept"),
    [
        # 0 1 2 3 [4] 5 6 7 8 [9]: five iterations before, five after
        (range(10), 2, (4, 9)),
        (range(10), 1, (9,)),
        (range(10), 5, (1, 3, 5, 7, 9)),
        (range(10), 10, tuple(range(10))),
        (range(3), 7, (0, 1, 2)),
        ((), 2, ()),
        ((7,), 2, (7,)),
        # . . 2 . . . . . . . [10] … . [99]: what is nearest to the middle is what is there
        ((2, 10, 99), 2, (10, 99)),
        ((97, 98, 99), 2, (97, 99)),
        ((5, 5, 3, 3), 2, (3, 5)),
    ],
)
def test_thin(iterations: range, keep: int, kept: tuple[int, ...]) -> None:
    assert thin(iterations, keep) == kept


def test_the_last_one_cannot_be_given_up() -> None:
    with pytest.raises(ValueError, match="keep=0"):
        thin(range(3), 0)


@given(ITERATIONS, st.integers(1, 70))
def test_thin_keeps_the_last_and_as_many_as_asked(iterations: list[int], keep: int) -> None:
    kept = thin(iterations, keep)
    assert set(kept) <= set(iterations)
    assert len(kept) == min(keep, len(set(iterations)))
    assert list(kept) == sorted(set(kept))
    assert kept[-1] == max(iterations)


@given(ITERATIONS)
def test_two_are_the_middle_and_the_last(iterations: list[int]) -> None:
    """No other one is nearer to the middle."""
    kept = thin(iterations, 2)
    others = set(iterations) - {max(iterations)}
    if others:
        middle = (max(iterations) + 1) / 2
        assert abs(kept[0] + 1 - middle) == min(abs(i + 1 - middle) for i in others)


@given(st.integers(1, 300), st.integers(1, 300))
def test_gaps_are_even_where_every_iteration_is_there(count: int, keep: int) -> None:
    kept = thin(range(count), keep)
    gaps = [b - a for a, b in itertools.pairwise((-1, *kept))]
    assert max(gaps) - min(gaps) <= 1


@given(st.lists(st.integers(0, 300), min_size=2, max_size=60, unique=True), st.integers(2, 30))
def test_no_gap_is_wider_than_it_must_be(iterations: list[int], keep: int) -> None:
    """A part of the work is never longer than an even part and one hole on each of its sides."""
    kept = thin(iterations, keep)
    there = sorted(iterations)
    hole = max(b - a for a, b in itertools.pairwise((-1, *there)))
    even = (there[-1] + 1) / keep
    if len(there) > keep:
        assert max(b - a for a, b in itertools.pairwise((-1, *kept))) <= even + 2 * hole


@given(ITERATIONS)
def test_halving_again_and_again_ends_with_the_middle_and_the_last(iterations: list[int]) -> None:
    """What is left in between never loses the middle."""
    left, counts = tuple(sorted(set(iterations))), []
    while len(left) > KEPT:
        halved = halve(left)
        assert set(halved) < set(left)
        counts.append((len(left) + 1) // 2 - len(halved))
        left = halved
    assert left == thin(iterations, 2)
    assert set(counts) <= {0}


@given(st.integers(3, 300))
def test_halving_a_full_loop_leaves_even_gaps(count: int) -> None:
    halved = halve(range(count))
    gaps = [b - a for a, b in itertools.pairwise((-1, *halved))]
    assert set(gaps) <= ({2} if count % 4 == 0 else {1, 2, 3})


# --- keep_evenly --------------------------------------------------------------------------


def test_each_execution_of_the_main_loop_keeps_its_own() -> None:
    """Cross-validation: every fold keeps its middle and its last."""
    folds = [held("a", i, loop=fold) for fold in (1, 2) for i in range(6)]
    retired = keep_evenly(HeldRun("a", tuple(folds)), 2)
    assert [(c.instance.loop_pk, c.iteration) for c in folds if c not in retired] == [
        *((1, 2), (1, 5)),
        *((2, 2), (2, 5)),
    ]


def test_two_checkpoints_of_an_iteration_stay_together() -> None:
    """One at the end of the nested loop, one at the end of the iteration."""
    twins = [
        Held("a", 2 * i + k, f"{i}.{k}", LOOP, i, frozenset()) for i in range(4) for k in (0, 1)
    ]
    retired = keep_evenly(HeldRun("a", tuple(twins)), 2)
    assert [c.manifest for c in twins if c not in retired] == ["1.0", "1.1", "3.0", "3.1"]


def test_pinned_ones_stay_besides() -> None:
    checkpoints = tuple(held("a", i, pinned=i == 0) for i in range(8))
    retired = keep_evenly(HeldRun("a", checkpoints), 2)
    assert left([HeldRun("a", checkpoints)], retired) == {"a": [0, 3, 7]}


# --- plan_thinning ------------------------------------------------------------------------


def test_the_run_with_the_most_is_halved_first() -> None:
    runs = [run("a", 4), run("b", 8)]
    retired = plan_thinning(runs, 40, sizes_of(*runs))
    assert left(runs, retired) == {"a": [0, 1, 2, 3], "b": [1, 3, 5, 7]}


def test_of_equals_the_one_used_longest_ago_is_halved_first() -> None:
    runs = [run("old", 4), run("new", 4)]
    retired = plan_thinning(runs, 1, sizes_of(*runs))
    assert left(runs, retired) == {"old": [1, 3], "new": [0, 1, 2, 3]}


def test_nothing_goes_if_nothing_must() -> None:
    assert plan_thinning([run("a", 100)], 0, sizes_of(run("a", 100))) == ()


def test_an_object_is_free_when_all_that_need_it_are_gone() -> None:
    """The first checkpoint of each run holds the same large object."""
    # a: [0] 1 2 3    b: [0] 1 2 3
    runs = [
        HeldRun(name, tuple(held(name, i, *(["shared"] if i == 0 else [])) for i in range(4)))
        for name in "ab"
    ]
    retired = plan_thinning(runs, 100, {"shared": 100})
    assert left(runs, retired) == {"a": [1, 3], "b": [1, 3]}
    assert freed_by(runs, retired) >= {"shared"}
    assert "shared" not in freed_by(runs, [c for c in retired if c.run_id == "a"])


def test_a_living_run_keeps_more() -> None:
    runs = [run("a", 32, alive=True)]
    retired = plan_thinning(runs, 10**9, sizes_of(*runs))
    assert left(runs, retired) == {"a": [7, 15, 23, 31]}


def test_pins_hold_while_the_others_go() -> None:
    """Pinned ones are as many as would go at first; the rest is thinned all the same."""
    checkpoints = tuple(held("a", i, f"own{i}", pinned=i % 2 == 0) for i in range(8))
    runs = [HeldRun("a", checkpoints)]
    retired = plan_thinning(runs, 10**9, sizes_of(*runs))
    assert left(runs, retired) == {"a": [0, 2, 3, 4, 6, 7]}


@st.composite
def projects(draw: st.DrawFn) -> list[HeldRun]:
    """Runs whose checkpoints share objects in any way."""
    runs = []
    for name in "abcd"[: draw(st.integers(1, 4))]:
        checkpoints = [
            held(
                *(name, iteration),
                *(f"own{k}" for k in draw(st.sets(st.integers(0, 12), max_size=4))),
                loop=loop,
                pinned=draw(st.integers(0, 9)) == 0,
            )
            for loop in range(1, draw(st.integers(1, 2)) + 1)
            for iteration in sorted(draw(st.sets(st.integers(0, 40), max_size=16)))
        ]
        runs.append(HeldRun(name, tuple(checkpoints), alive=draw(st.booleans())))
    return runs


@given(projects(), st.integers(0, 150))
def test_a_plan_frees_enough_or_all_it_may(runs: list[HeldRun], to_free_bytes: int) -> None:
    sizes = sizes_of(*runs)
    retired = plan_thinning(runs, to_free_bytes, sizes)

    freed = sum(sizes.get(digest, 0) for digest in freed_by(runs, retired))
    assert len(set(retired)) == len(retired)
    assert not any(checkpoint.pinned for checkpoint in retired)
    least = []
    for r in runs:
        floor = KEPT_ALIVE if r.alive else KEPT
        for loop in {c.instance for c in r.checkpoints}:
            group = [c for c in r.checkpoints if c.instance == loop]
            kept = {c.iteration for c in group if c not in retired}
            before = {c.iteration for c in group}
            assert max(before) in kept
            assert len(kept) >= min(floor, len(before))
            unpinned = {c.iteration for c in group if c not in retired and not c.pinned}
            least.append(len(unpinned) <= floor)
    assert freed >= to_free_bytes or all(least)


@given(projects(), st.integers(0, 150))
def test_a_plan_stops_as_soon_as_it_may(runs: list[HeldRun], to_free_bytes: int) -> None:
    """Without the last run that was halved, it would not be enough."""
    sizes = sizes_of(*runs)
    retired = plan_thinning(runs, to_free_bytes, sizes)
    last = [k for k, checkpoint in enumerate(retired) if checkpoint.run_id != retired[-1].run_id]
    before = retired[: last[-1] + 1] if last else ()
    if retired:
        assert sum(sizes.get(d, 0) for d in freed_by(runs, before)) < to_free_bytes
