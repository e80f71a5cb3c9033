"""Scripts that train with checkpoints, and what these hold."""

from __future__ import annotations

import json
import textwrap
from typing import Any

from tests.e2e.conftest import Project

# The number that is trained counts the steps: whatever is restored tells where it was taken.
BEGIN = "import flor, sys\nweights = [0]\n"

STATES = """
import json, sys, flor
for row in flor.checkpoints(sys.argv[1]).to_dict("records"):
    # The main loop's iteration would name the state where its nested loop ended.
    at_the_end = row["final"] and not isinstance(row["boundary"], str)
    place = {name: int(row[name]) for name in sys.argv[2 : -1 if at_the_end else None]}
    print(json.dumps(flor.load(row["run_id"], **place)["weights"]))
"""
LOOK = """
import json, flor
state = flor.load(epoch=1)
print(json.dumps({name: repr(value) for name, value in state.items() if name != "weights"}))
"""


def train(project: Project, body: str, code: int = 0, **env: str) -> str:
    """Run a script with checkpoints of each epoch; what it told on stderr."""
    project.write("train.py", BEGIN + textwrap.dedent(body))
    env = {"FLOR_OVERHEAD": "inf"} | env
    return project.python("train.py", code=code, **env).stderr


def taken(project: Project, run: int = -1) -> list[str]:
    """The checkpoints of a run: "epoch 3 after step, last"."""
    loops = {line["id"]: line for line in project.lines("loop", run)}
    found = []
    for line in project.lines("checkpoint", run):
        places, loop, iteration = [], line["loop"], line["iteration"]
        while loop:
            places.append(f"{loops[loop]['name']} {iteration}")
            loop, iteration = loops[loop]["parent"], loops[loop]["iteration"]
        moment = f" after {line['boundary']}" if line["boundary"] else ""
        found.append(", ".join(reversed(places)) + moment + (", last" if line["final"] else ""))
    return found


def states(project: Project, *loops: str, run: str = "latest") -> list[Any]:
    """The weights in each checkpoint of a run, in the order in which they were taken."""
    out = project.python("-c", STATES, run, *(loops or ("epoch",)), FLOR_DISABLE="1").stdout
    return [json.loads(line) for line in out.splitlines()]


def variables(project: Project) -> dict[str, str]:
    """The variables of epoch 1, each as it is printed."""
    found: dict[str, str] = json.loads(project.python("-c", LOOK, FLOR_DISABLE="1").stdout)
    return found
