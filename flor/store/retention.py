"""Which checkpoints to keep when there is no room for all of them.

FlorDB 6.1.2 keeps checkpoints that are evenly spaced, so that a replay can be divided into equal
parts, and as few as two: the last one answers queries about a run's end, the middle one halves
every replay. Nothing here touches a file.
"""

from __future__ import annotations

import bisect
import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

KEPT = 2  # of each main loop of a run that has ended: the middle and the last
KEPT_ALIVE = 4  # of one that has not: where its middle will be is not known yet


class Instance(NamedTuple):
    """One execution of a main loop: the journal file and the loop in it."""

    file_no: int
    loop_pk: int


@dataclass(frozen=True)
class Held:
    """A checkpoint that is there. `objects` are those that it needs, its manifest's included."""

    run_id: str
    number: int
    manifest: str
    instance: Instance
    iteration: int
    objects: frozenset[str]
    pinned: bool = False  # somebody needs it just now: it is never retired


@dataclass(frozen=True)
class HeldRun:
    """The checkpoints of a run that are there."""

    run_id: str
    checkpoints: tuple[Held, ...]
    alive: bool = False


def thin(iterations: Sequence[int], keep: int) -> tuple[int, ...]:
    """`keep` of the iterations, or all if they are fewer, as evenly spaced as they allow.

    The last one is always among them. They divide the work of the loop from its first iteration
    on: two are the one nearest to the middle and the last.
    """
    if keep < 1:
        raise ValueError(f"keep={keep}: the last checkpoint always stays")
    there = sorted(set(iterations))
    if len(there) <= keep:
        return tuple(there)
    end = there[-1] + 1
    chosen = []
    low = 0
    for part in range(1, keep + 1):
        high = len(there) - (keep - part)  # so many are needed after this one
        index = _nearest(there, end * part, keep, low, high)
        chosen.append(there[index])
        low = index + 1
    return tuple(chosen)


def halve(iterations: Sequence[int], floor: int = KEPT) -> tuple[int, ...]:
    """Every other one, but no fewer than `floor`; the middle and the last stay to the end.

    Each half of the loop is thinned for itself: of three evenly spaced ones, none is the middle.
    """
    there = sorted(set(iterations))
    keep = max(floor, (len(there) + 1) // 2)
    if keep < KEPT or len(there) <= keep:
        return thin(there, keep)
    middle = thin(there, KEPT)[0]
    after = middle + 1
    first = [iteration for iteration in there if iteration <= middle]
    second = [iteration - after for iteration in there if iteration > middle]
    count = min(len(first), max(keep - len(second), (keep + 1) // 2))
    return (*thin(first, count), *(after + i for i in thin(second, keep - count)))


def _nearest(there: list[int], done: int, parts: int, low: int, high: int) -> int:
    """The index in [low, high) whose iteration, when done, is nearest to `done / parts` of them."""
    after = bisect.bisect_left(there, done / parts - 1, low, high)
    nearby = range(max(low, after - 1), min(high, after + 1))
    return min(nearby, key=lambda index: abs(parts * (there[index] + 1) - done))


def keep_evenly(run: HeldRun, keep: int) -> tuple[Held, ...]:
    """The checkpoints to retire so that each main loop keeps that many iterations' at most."""
    retired = [
        checkpoint
        for group in _instances(run).values()
        for kept in [set(thin([checkpoint.iteration for checkpoint in group], keep))]
        for checkpoint in group
        if checkpoint.iteration not in kept and not checkpoint.pinned
    ]
    return tuple(retired)


def plan_thinning(
    runs: Sequence[HeldRun], to_free_bytes: float, sizes: Mapping[str, int]
) -> tuple[Held, ...]:
    """The checkpoints to retire, in order, until `to_free_bytes` are free or nothing is left to do.

    `runs` come oldest use first. `sizes` has what the disk gains when no checkpoint needs an
    object any more; an object that is not in it gains nothing. Again and again the run with the
    most checkpoints, the oldest of several, keeps every other one, evenly spaced; none keeps fewer
    than KEPT iterations of a main loop, or KEPT_ALIVE while it is alive. Nothing pinned goes.
    """
    users = Counter(digest for run in runs for item in run.checkpoints for digest in item.objects)
    plans = [_Halving(run) for run in runs]
    queue = [(-len(plan.left), age) for age, plan in enumerate(plans)]
    heapq.heapify(queue)
    retired: list[Held] = []
    freed = 0
    while queue and freed < to_free_bytes:
        _, age = heapq.heappop(queue)
        going = plans[age].step()
        if not going:
            continue
        for digest in (digest for checkpoint in going for digest in checkpoint.objects):
            users[digest] -= 1
            if not users[digest]:
                freed += sizes.get(digest, 0)
        retired += going
        heapq.heappush(queue, (-len(plans[age].left), age))
    return tuple(retired)


def freed_by(runs: Iterable[HeldRun], retired: Iterable[Held]) -> set[str]:
    """The objects that no checkpoint needs any more when `retired` are gone."""
    gone = {checkpoint.manifest for checkpoint in retired}
    freed: set[str] = set()
    needed: set[str] = set()
    for checkpoint in (checkpoint for run in runs for checkpoint in run.checkpoints):
        (freed if checkpoint.manifest in gone else needed).update(checkpoint.objects)
    return freed - needed


class _Halving:
    """One run that is thinned step by step. `left` are the checkpoints that stay so far."""

    def __init__(self, run: HeldRun) -> None:
        self.left = list(run.checkpoints)
        self._floor = KEPT_ALIVE if run.alive else KEPT
        self._groups = _instances(run)
        self._kept = {
            instance: tuple(sorted({checkpoint.iteration for checkpoint in group}))
            for instance, group in self._groups.items()
        }

    def step(self) -> list[Held]:
        """Halve each main loop's; those that go, none if all are as few as they may be."""
        while any(len(kept) > self._floor for kept in self._kept.values()):
            for instance, kept in self._kept.items():
                self._kept[instance] = halve(kept, self._floor)
            going = [checkpoint for checkpoint in self.left if not self._stays(checkpoint)]
            if going:  # otherwise all of them are pinned
                self.left = [checkpoint for checkpoint in self.left if self._stays(checkpoint)]
                return going
        return []

    def _stays(self, checkpoint: Held) -> bool:
        return checkpoint.pinned or checkpoint.iteration in self._kept[checkpoint.instance]


def _instances(run: HeldRun) -> dict[Instance, list[Held]]:
    groups: dict[Instance, list[Held]] = defaultdict(list)
    for checkpoint in run.checkpoints:
        groups[checkpoint.instance].append(checkpoint)
    return dict(groups)
