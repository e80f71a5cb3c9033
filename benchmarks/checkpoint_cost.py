"""What one checkpoint costs the training loop, on the CPU with one training thread, or on a GPU.

A transformer with Adam trains; the same epochs are timed without checkpoints, with one at the end
of each, and without again. `stall` is what the loop waits for the call; `total` is what an epoch
with a checkpoint takes longer, interference of the background included.

python benchmarks/checkpoint_cost.py [--state MB] [--device cuda] [--rounds N]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median

import harness
from harness import Figure, Metrics

STATE_MB = 500
TRAINING = """
import argparse, statistics
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
DEVICE, STATE_MB, EPOCHS, SECONDS = {device!r}, {state}, {epochs}, {seconds}
width = 512
block = lambda: nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, dropout=0.0)
per_block = sum(p.numel() for p in block().parameters()) * 12
net = nn.TransformerEncoder(block(), max(1, round(STATE_MB * 1e6 / per_block)),
                            enable_nested_tensor=False).to(DEVICE)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
size = sum(p.numel() for p in net.parameters()) * 12
batch = torch.randn(1, 16, width, device=DEVICE)

def step():
    optimizer.zero_grad()
    net(batch).square().mean().backward()
    optimizer.step()

def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()

for _ in range(3):
    step()
wait()
began = clock()
for _ in range(5):
    step()
wait()
STEPS = max(4, round(SECONDS / ((clock() - began) / 5)))

def rest(began):
    for _ in range(STEPS - 1):
        step()
    wait()
    return clock() - began

def measure(save, finish=lambda: None):
    # Epochs with and without a save after their first step, in turns.
    stalls, saved, plain = [], [], []
    for number in range(EPOCHS + 1):
        began = clock()
        step()
        wait()
        start = clock()
        save()
        stalls.append(clock() - start)
        saved.append(rest(began))
        finish()
        began = clock()
        step()
        plain.append(rest(began))
    show(stalls[1:], saved[1:], plain[1:])  # the first ones set things up

def show(stalls, saved, plain, **more):
    pairs = [with_one - without for with_one, without in zip(saved, plain)]
    report(stall=min(stalls) * 1e3, total=statistics.median(pairs) * 1e3, size_mb=size / 1e6,
           epoch=statistics.median(plain), **more)

state = lambda: {{"model": net.state_dict(), "optimizer": optimizer.state_dict()}}
"""
WAYS = {
    "torch.save": "measure(lambda: torch.save(state(), 'checkpoint.pt'))",
    "dcp.async_save": """
import warnings; warnings.simplefilter("ignore")
import logging; logging.disable(logging.WARNING)
import torch.distributed as dist, torch.distributed.checkpoint as dcp
import shutil, tempfile
dist.init_process_group("gloo", init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)
WRITER = dcp.FileSystemWriter("dcp", cache_staged_state_dict=True)
future = None
def save():
    global future
    if future is not None:
        future.result()
    shutil.rmtree("dcp", ignore_errors=True)
    future = dcp.async_save({"state": state()}, storage_writer=WRITER)
measure(save, lambda: future.result())
dist.destroy_process_group()
""",
    "fork + torch.save": """
import os, signal
children = []
def save():
    pid = os.fork()
    if pid == 0:
        torch.save(state(), "forked.pt")
        os._exit(0)
    children.append(pid)
def finish():
    while children:
        os.waitpid(children.pop(), 0)
measure(save, finish)
""",
    "one copy into reused memory": """
blocks = [t for t in (*net.state_dict().values(),
          *(v for s in optimizer.state.values() for v in s.values())) if t.numel() > 1000]
kept = [torch.empty_like(t).copy_(t) for t in blocks]
import ctypes
def save():
    if DEVICE == "cuda":
        torch._foreach_copy_(kept, blocks)
    else:
        for a, b in zip(kept, blocks):
            ctypes.memmove(a.data_ptr(), b.data_ptr(), b.numel() * b.element_size())
measure(save)
""",
}
OURS = """
import flor, json, pathlib
saved, plain = [], []
with flor.checkpointing(model=net, optimizer=optimizer):
    for number in flor.loop("epoch", range(2 * EPOCHS + 6)):
        began = clock()
        if number % 2 == 0:
            for _ in flor.loop("step", range(1)):
                step()
                wait()
            saved.append(rest(began))
        else:
            step()
            plain.append(rest(began))
lines = [json.loads(line) for path in pathlib.Path(".flor/runs").glob("*/journal.jsonl")
         for line in path.read_text().splitlines() if '"t": "checkpoint"' in line]
taken = {line["iteration"] // 2: line for line in lines if line["iteration"] % 2 == 0}
counted = sorted(taken)[1:]
show([taken[n]["stall_seconds"] for n in counted], [saved[n] for n in counted],
     [plain[n] for n in counted], count=len(counted),
     background=min(line["write_seconds"] for line in lines) * 1e3)
"""


def one(way: str, state: int, device: str, python: Path) -> Metrics:
    head = TRAINING.format(state=state, device=device, epochs=7, seconds=3)
    body = head + (OURS if way == "flor" else WAYS[way])
    subject = harness.Subject(way, python, "flor")
    script = subject.script(body, imports=False)
    with harness.project() as root:
        return harness.run(root, subject, script, FLOR_OVERHEAD="1").figures


def measure_cost(state: int, device: str, rounds: int) -> dict[str, Metrics]:
    best: dict[str, Metrics] = {}
    found: dict[str, list[Metrics]] = {}
    for turn in range(rounds):
        for way in ("flor", *WAYS):
            print(f"  round {turn + 1}/{rounds}: {way}", file=sys.stderr, flush=True)
            found.setdefault(way, []).append(one(way, state, device, Path(sys.executable)))
    for way, metrics in found.items():
        best[way] = {key: min(item[key] for item in metrics) for key in metrics[0]}
        best[way]["total"] = max(median(item["total"] for item in metrics), 0.0)  # it is noisy
    return best


def measure(subjects: object = None, rounds: int | None = None) -> list[Figure]:
    return figures(measure_cost(STATE_MB, "cpu", rounds or 3), STATE_MB, "cpu")


def figures(best: dict[str, Metrics], state: int, device: str) -> list[Figure]:
    ours = best["flor"]
    copying = best["one copy into reused memory"]["stall"]
    names = [name for name in WAYS if not name.startswith("one copy")]
    what = f"checkpoint of {state} MB, {device}"
    goal = 60.0 if device == "cpu" else 10.0
    return [
        Figure(
            f"{what}: stall", "ms", 1.1 * copying if device == "cpu" else 10.0,
            ours["stall"], {name: best[name]["stall"] for name in names},
        ),
        Figure(f"{what}: one copy, for comparison", "ms", None, copying),
        Figure(
            f"{what}: total cost to the loop", "ms", goal,
            ours["total"], {name: best[name]["total"] for name in names},
        ),
        Figure(f"{what}: written in the background after", "ms", None, ours["background"]),
    ]  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=int, default=STATE_MB)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    found = measure_cost(chosen.state, chosen.device, chosen.rounds)
    print(found, file=sys.stderr)
    print(harness.table(figures(found, chosen.state, chosen.device)))
