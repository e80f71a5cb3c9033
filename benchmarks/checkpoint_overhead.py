"""What recording with checkpoints costs whole trainings: the eight shapes of Flor's Table 3, small.

Each shape is a size of state, how much of it is frozen, and how long an epoch takes; the training
runs with flor (default settings) and with FLOR_DISABLE=1, in turns. The start of the run, which is
measured by itself, is not in it: it would be much of trainings this short. Then fine-tuning with
95 % of the weights frozen: bytes written for a checkpoint against the bytes that changed.

python benchmarks/checkpoint_overhead.py [--rounds N]
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from statistics import mean
from typing import NamedTuple

import harness
from harness import OURS, Figure, Metrics, Subject

EPS = 100 / 15


class Shape(NamedTuple):
    """`state` and `frozen` in MB; an epoch's seconds; epochs."""

    name: str
    state: int
    frozen: int
    seconds: float
    epochs: int


SHAPES = (
    Shape("RTE: large frozen state, short epochs", 15, 285, 0.3, 40),
    Shape("CoLA: large frozen state, short epochs", 15, 285, 0.6, 20),
    Shape("Cifr: small state, short epochs", 9, 0, 0.3, 40),
    Shape("RsNt: large state, middling epochs", 350, 0, 2.0, 7),
    Shape("Wiki: large state, long epochs", 700, 0, 6.0, 3),
    Shape("Jasp: large state, long epochs, few", 500, 0, 5.0, 3),
    Shape("ImgN: small state, long epochs", 9, 0, 3.0, 4),
    Shape("RnnT: middling state, middling epochs", 150, 0, 2.0, 6),
)
TRAINING = """
import torch
from torch import nn
import flor

torch.set_num_threads(1)
torch.manual_seed(0)
STATE, FROZEN, SECONDS, EPOCHS = {state}, {frozen}, {seconds}, {epochs}

def layers(megabytes, width=1024):
    count = max(1, round(megabytes * 1e6 / (width * width * 4)))
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(count)))

backbone = layers(FROZEN) if FROZEN else nn.Identity()
for parameter in backbone.parameters():
    parameter.requires_grad_(False)
head = layers(STATE / 3, 1024 if STATE > 20 else 256)
net = nn.ModuleDict({{"backbone": backbone, "head": head}})
optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=1e-5)
for weights in net.parameters():  # else what goes through so many layers vanishes
    weights.data.normal_(std=weights.shape[1] ** -0.5)
width = next(head.parameters()).shape[1]
batch = torch.randn(2, width)

def step():
    optimizer.zero_grad()
    loss = head(batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss

work = torch.randn(384, 384)
for _ in range(2):
    step()
# An epoch is so many steps and so much other arithmetic as take its seconds here.
began = clock(); step(); took = clock() - began
steps = int(os.environ.get("STEPS", 0)) or max(2, min(10, int(SECONDS / took / 2)))
began = clock()
for _ in range(20):
    work @ work
each = (clock() - began) / 20
extra = int(os.environ.get("REPEATS", 0))
if not extra:
    extra = max(1, int((SECONDS - steps * took) / steps / each))

flor.log("steps", steps)  # begins the run, which has a row of its own
began = clock()
with flor.checkpointing(model=net, optimizer=optimizer):
    for epoch in flor.loop("epoch", range(EPOCHS)):
        for _ in flor.loop("step", range(steps)):
            loss = step()
            for _ in range(extra):
                work @ work
        flor.log("loss", loss.item())
report(seconds=clock() - began, repeats=extra, steps=steps)
"""


def once(shape: Shape, **variables: str) -> Metrics:
    body = TRAINING.format(**shape._asdict())
    script = OURS.script(body, imports=False)
    with harness.project() as root:
        figures = harness.run(root, OURS, script, **variables).figures
        taken = [
            line
            for path in (root / ".flor" / "runs").glob("*/journal.jsonl")
            for line in path.read_text().splitlines()
            if '"t": "checkpoint"' in line
        ]
    return figures | {"checkpoints": len(taken)}


def overheads(rounds: int) -> dict[str, Metrics]:
    found: dict[str, Metrics] = {}
    for shape in SHAPES:
        print(f"  {shape.name}", file=sys.stderr, flush=True)
        first = once(shape, FLOR_DISABLE="1")
        work = {name.upper(): str(int(first[name])) for name in ("repeats", "steps")}
        plain, ours, taken = [], [], []
        for _ in range(rounds):
            plain.append(once(shape, FLOR_DISABLE="1", **work)["seconds"])
            figures = once(shape, **work)
            ours.append(figures["seconds"])
            taken.append(figures["checkpoints"])
        overhead = (min(ours) / min(plain) - 1) * 100
        found[shape.name] = {
            "overhead": overhead,
            "checkpoints": max(taken),
            "epochs": shape.epochs,
        }
        print(f"    {overhead:.2f} %, {max(taken)} of {shape.epochs}", file=sys.stderr, flush=True)
    return found


TUNING = """
import json, pathlib
import torch
from torch import nn
import flor

torch.set_num_threads(1)
torch.manual_seed(0)
body = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(114)))
for parameter in body.parameters():
    parameter.requires_grad_(False)
head = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(6)))
net = nn.ModuleDict({"body": body, "head": head})
for weights in net.parameters():
    weights.data.normal_(std=weights.shape[1] ** -0.5)
optimizer = torch.optim.Adam(head.parameters(), lr=1e-5)
batch = torch.randn(8, 1024)
changed = sum(p.numel() * 4 for p in head.parameters()) * 3
began = clock()
with flor.checkpointing(model=net, optimizer=optimizer):
    for epoch in flor.loop("epoch", range(12)):
        for _ in flor.loop("step", range(STEPS)):
            optimizer.zero_grad()
            head(body(batch)).square().mean().backward()
            optimizer.step()
seconds = clock() - began
lines = [json.loads(line) for path in pathlib.Path(".flor/runs").glob("*/journal.jsonl")
         for line in path.read_text().splitlines() if '"t": "checkpoint"' in line]
lines = [line for line in lines if line.get("boundary")]  # not the one at the loop's end
report(seconds=seconds, taken=len(lines), changed=changed,
       new=sorted(line["new_bytes"] for line in lines)[len(lines) // 2] if lines else 0)
"""
TUNING_STEPS = 45


def tuning(rounds: int) -> Metrics:
    script = OURS.script(TUNING.replace("STEPS", str(TUNING_STEPS)), imports=False)
    plain, ours = [], []
    for _ in range(rounds):
        for kept, variables in ((plain, {"FLOR_DISABLE": "1"}), (ours, {})):
            with harness.project() as root:
                kept.append(harness.run(root, OURS, script, **variables).figures)
    slow, fast = (min(item["seconds"] for item in kept) for kept in (ours, plain))
    return {
        "overhead": (slow / fast - 1) * 100,
        "ratio": max(item["new"] / item["changed"] for item in ours),
        "taken": min(item["taken"] for item in ours),
    }


def measure(subjects: Iterable[Subject] | None = None, rounds: int | None = None) -> list[Figure]:
    rounds = rounds or 4
    found = overheads(rounds)
    paper = "Flor, paper"
    figures = [
        Figure(
            f"{name} ({int(item['checkpoints'])} of {int(item['epochs'])} epochs kept)",
            "%",
            EPS,
            item["overhead"],
        )
        for name, item in found.items()
    ]
    average = mean(max(item["overhead"], 0.0) for item in found.values())
    figures.append(Figure("record overhead, mean of the eight", "%", 1.0, average, {paper: 1.74}))
    tuned = tuning(rounds)
    figures += [
        Figure("95 % frozen: overhead", "%", EPS, tuned["overhead"], {"Flor, paper": 91.0}),
        Figure("95 % frozen: epochs of 12 kept", "", 12, tuned["taken"], more_is_better=True),
        Figure("95 % frozen: written ÷ changed bytes", "", 1.1, tuned["ratio"]),
    ]
    return figures


if __name__ == "__main__":
    harness.main(measure, trackers=False)
