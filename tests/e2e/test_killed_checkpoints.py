"""`kill -9` at any moment of a training that takes checkpoints."""

from __future__ import annotations

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.conftest import Project

KILLS = int(os.environ.get("FLOR_KILLS", "200"))
AT_ONCE = 2

# The state is known from the epoch: whatever is restored can be compared with what it was.
TRAINING = """
import sys
import numpy as np, flor
from known import state_of

weights, shared, count = np.empty(300_000), np.arange(100_000.0), 0
with flor.checkpointing(weights=weights, shared=shared):
    print("begun", flush=True)
    for epoch in flor.loop("epoch", range(100_000)):
        for step in flor.loop("step", range(2)):
            weights[:] = state_of(int(sys.argv[1]), epoch, weights.size)
            count += 1
        flor.log("first", weights[0])
"""
KNOWN = """
import numpy as np

def state_of(seed, epoch, size):
    return (np.arange(size) * (epoch + 1) + seed) % 65521.0
"""
CHECK = """
import json
import numpy as np, flor
from known import state_of
from flor.config import load
from flor.store.checkpoints import list_checkpoints, read_manifest
from flor.store.bucket import store_of
from flor.store.catalog import find_run
from flor.store.project import opened
from flor.checkpoint.state import State
from pathlib import Path

checked, runs = 0, 0
with opened(load(Path("."))) as project:
    store = store_of(project.settings)
    for run_id, argv in project.db.execute("select run_id, argv from runs", ()):
        seed = int(json.loads(argv)[1])
        listed = list_checkpoints(project.db, find_run(project.db, run_id))
        runs += bool(listed)
        for item in listed:
            state = State(read_manifest(store, item), store)
            epoch = state.place["epoch"]
            expected = state_of(seed, epoch, 300_000)
            assert np.array_equal(state["weights"], expected), (run_id, epoch)
            assert np.array_equal(state["shared"], np.arange(100_000.0)), (run_id, epoch)
            assert state["count"] == 2 * epoch + 2 and state["epoch"] == epoch, (run_id, epoch)
            checked += 1
print(checked, runs)
"""


@pytest.fixture
def kills(project: Project) -> int:
    """So many trainings in one project, each killed at a random moment."""
    project.write("known.py", KNOWN)
    project.write("train.py", TRAINING)
    moments = random.Random(os.environ.get("FLOR_SEED"))
    waits = [moments.uniform(0, 0.4) for _ in range(KILLS)]

    def kill_after(number: int) -> None:
        process = project.start("train.py", str(number), FLOR_OVERHEAD="1")
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(waits[number])
        process.send_signal(signal.SIGKILL)
        _, told = process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert told == ""

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(kill_after, range(KILLS)))
    return KILLS


def test_every_listed_checkpoint_restores_after_kills_at_any_moment(
    project: Project, kills: int
) -> None:
    project.write("check.py", CHECK)

    checked, runs = map(int, project.python("check.py", FLOR_DISABLE="1").stdout.split())

    assert checked > kills / 2
    assert runs > kills / 4
    project.flor("objects", "--verify")
