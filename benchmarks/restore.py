"""Restoring 1.5 GB of state from local disk into a model and its optimizer, against torch.load.

Both files are in the page cache, then neither is. The time is that of the whole call, until the
objects hold the state; both sides restore into the same kind of objects.

python benchmarks/restore.py [--rounds N]
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import harness
from harness import OURS, Figure, Metrics, Subject

COMMON = """
import glob
import torch
from torch import nn
import flor

def build(scale):
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(30)))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    if scale:
        for parameter in net.parameters():
            parameter.grad = torch.full_like(parameter, scale)
        optimizer.step()
    return net, optimizer
"""
SAVE = (
    COMMON
    + """
net, optimizer = build(0.5)
with flor.checkpointing(model=net, optimizer=optimizer):
    for _ in flor.loop("epoch", range(1)):
        pass
torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, "state.pt")
os.sync()
"""
)
LOAD = (
    COMMON
    + """
net, optimizer = build(0.1)
if os.environ["CACHE"] == "cold":
    for path in [*glob.glob(".flor/objects/*/*"), "state.pt"]:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
else:
    for path in [*glob.glob(".flor/objects/*/*"), "state.pt"]:
        with open(path, "rb") as file:
            while file.read(1 << 24):
                pass
if os.environ["WAY"] == "flor":
    import flor.store.restore, flor.store.project  # as torch.load's imports are done
    began = clock()
    flor.load(model=net, optimizer=optimizer)
else:
    began = clock()
    state = torch.load("state.pt")
    net.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
seconds = clock() - began
for parameter in net.parameters():
    parameter.grad = torch.zeros_like(parameter)
optimizer.step()  # the first one may find memory that is only promised
report(stepped=clock() - began, seconds=seconds, first=net[0].weight[0, 0].item())
"""
)
WAYS = ("flor", "torch.load")


def measure(subjects: Iterable[Subject] | None = None, rounds: int | None = None) -> list[Figure]:
    best: dict[str, Metrics] = {}
    with harness.project() as root:
        harness.run(root, OURS, OURS.script(SAVE, imports=False))
        script = OURS.script(LOAD, imports=False)
        for turn in range(rounds or 5):
            for cache in ("warm", "cold"):
                for way in WAYS:
                    print(f"  round {turn + 1}: {way}, {cache}", file=sys.stderr, flush=True)
                    figures = harness.run(
                        root, OURS, script, "load.py", WAY=way, CACHE=cache, FLOR_DISABLE="1"
                    ).figures
                    kept = best.setdefault(way, {})
                    for what in ("seconds", "stepped"):
                        key = f"{cache} {what}"
                        kept[key] = min(figures[what], kept.get(key, 1e9))
    return [
        Figure(
            f"restore of 1.5 GB, {cache} page cache{more}",
            "s",
            best["torch.load"][f"{cache} {what}"],
            best["flor"][f"{cache} {what}"],
            {"torch.load": best["torch.load"][f"{cache} {what}"]},
        )
        for cache in ("warm", "cold")
        for what, more in (("seconds", ""), ("stepped", ", and the first step"))
    ]


if __name__ == "__main__":
    harness.main(measure, trackers=False)
