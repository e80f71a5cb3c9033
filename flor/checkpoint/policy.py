"""When a checkpoint is worth its cost. Pure: times come in, a decision goes out.

With M the cost of a checkpoint to the training, C the seconds of an iteration, n iterations and k
checkpoints so far, a checkpoint is taken if

    M / C < n / (k + 1) · min(1 / (1 + c), overhead)

(Flor, equation 4): what all checkpoints cost stays below `overhead` of the training, and replaying
from them is faster than training again. It is kept in sums, as costs and iterations vary, and one
more checkpoint is held in reserve: the final state is always taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

RESTORE_FACTOR = 1.38  # a restore costs so many times a checkpoint, as measured in Flor's Table 3
FIRST_COPY_RATE = 2e9  # bytes a second, assumed until the first copy was measured
FIRST_WRITE_RATE = 4e8
RECENT = 0.5  # weight of the newest cost in the expectation of the next


@dataclass
class Policy:
    """Keeps the accounts of one `flor.checkpointing` block."""

    overhead: float
    trained_seconds: float = 0.0  # in iterations of the main loop, without what is spent
    spent_seconds: float = 0.0
    checkpoints: int = 0
    iterations: int = 0
    expected_seconds: float | None = None  # of the next checkpoint

    @property
    def unlimited(self) -> bool:
        return math.isinf(self.overhead)

    def expect(self, size_bytes: int, contention: float) -> None:
        """A first guess: what copying costs, and what of the writing the training will feel."""
        if self.expected_seconds is None:
            copying = size_bytes / FIRST_COPY_RATE
            self.expected_seconds = copying + contention * size_bytes / FIRST_WRITE_RATE

    def trained(self, seconds: float, iterations: int = 1) -> None:
        """An iteration took so long, without what a checkpoint took of it."""
        self.trained_seconds += max(seconds, 0.0)
        self.iterations += iterations

    def wants(self, so_far: float = 0.0) -> bool:
        """Whether a checkpoint is worth it, `so_far` seconds into an iteration."""
        if self.unlimited:
            return True
        cost = self.expected_seconds or 0.0
        share = min(1 / (1 + RESTORE_FACTOR), self.overhead)
        after = self.spent_seconds + cost + cost  # this one, and the final one
        return after < share * (self.trained_seconds + so_far)

    def paid(self, seconds: float) -> None:
        """A checkpoint is done, and cost the training so much."""
        self.spent_seconds += seconds
        self.checkpoints += 1
        before = self.expected_seconds
        if before is None or self.checkpoints == 1:
            self.expected_seconds = seconds
        else:
            self.expected_seconds = RECENT * seconds + (1 - RECENT) * before


def contention(idle_cores: float, cores: int, busy_cores: float) -> float:
    """How much of the writer's processor time the training feels, from 0 to 1.

    `idle_cores` is what the system left idle while the writer worked, `busy_cores` what this
    process used besides it. With half a core idle the writer took nothing from the training;
    with none, all that it took was the training's.
    """
    free = max(min(idle_cores, cores - busy_cores), 0.0)
    return min(max(1.0 - free / 0.5, 0.02), 1.0)
