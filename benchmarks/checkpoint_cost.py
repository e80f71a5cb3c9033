"""What one checkpoint costs the training loop, on the CPU with one training thread, or on a GPU.

A transformer with Adam trains; an epoch with a checkpoint after its first step and two without are
timed in turns. `stall` is what the loop waits for the call; `total` is what an epoch with a
checkpoint takes longer than those before and after it, interference of the background included;
`noise` is what the two without differ by. On a GPU it is a model of the size of GPT-2 small, in
bfloat16 with float32 weights.

python benchmarks/checkpoint_cost.py [--state MB] [--device cuda] [--rounds N]
"""

from __future__ import annotations

import argparse
import sys
from statistics import median

import harness
from harness import Figure, Metrics

STATE_MB = 500
MODELS = {
    "cpu": """
width = 512
block = lambda: nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, dropout=0.0)
per_block = sum(p.numel() for p in block().parameters()) * 12
net = nn.TransformerEncoder(block(), max(1, round(STATE_MB * 1e6 / per_block)),
                            enable_nested_tensor=False)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
batch = torch.randn(1, 16, width)
loss = lambda: (net(torch.randn_like(batch)) - batch).square().mean()
""",
    "cuda": """
class GPT(nn.Module):
    def __init__(self, width=768):
        super().__init__()
        self.tokens, self.places = nn.Embedding(50257, width), nn.Embedding(1024, width)
        block = nn.TransformerEncoderLayer(width, 12, 4 * width, batch_first=True, dropout=0.0,
                                           activation="gelu", norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 12, enable_nested_tensor=False)
        self.head = nn.Linear(width, 50257, bias=False)
        self.head.weight = self.tokens.weight
    def forward(self, x):
        found = self.tokens(x) + self.places.weight[:x.shape[1]]
        return self.head(self.blocks(found))
net = GPT().cuda()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
def loss():
    batch = torch.randint(50257, (8, 513), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = net(batch[:, :-1])
    return nn.functional.cross_entropy(found.flatten(0, 1), batch[:, 1:].flatten())
""",
}
TRAINING = """
import argparse, statistics
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
DEVICE, STATE_MB, EPOCHS, SECONDS = {device!r}, {state}, {epochs}, {seconds}
{model}
size = sum(p.numel() for p in net.parameters()) * 12

def step():
    optimizer.zero_grad()
    loss().backward()
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
    # An epoch with a save after its first step and two without, in turns.
    stalls, saved, plain, again = [], [], [], []
    for number in range(EPOCHS + 1):
        began = clock()
        step()
        wait()
        start = clock()
        save()
        stalls.append(clock() - start)
        saved.append(rest(began))
        finish()
        for kept in (plain, again):
            began = clock()
            step()
            kept.append(rest(began))
    show(stalls[1:], saved[1:], plain[1:], again[1:])  # the first ones set things up

def show(stalls, saved, plain, again, **more):
    more_than = [one - (a + b) / 2 for one, a, b in zip(saved, plain, again)]
    noise = [abs(a - b) for a, b in zip(plain, again)]
    report(stall=min(stalls) * 1e3, total=statistics.median(more_than) * 1e3,
           noise=statistics.median(noise) * 1e3, size_mb=size / 1e6,
           epoch=statistics.median(plain), count=len(saved), **more)

blocks = [t for t in (*net.state_dict().values(),
          *(v for s in optimizer.state.values() for v in s.values())) if t.numel() > 1000]
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
if DEVICE == "cuda":  # where the newer stager fails
    OPTIONS = {"storage_writer": dcp.FileSystemWriter("dcp", cache_staged_state_dict=True)}
else:
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    stager = DefaultStager(StagingOptions(False, False, False, False))  # it keeps its memory
    OPTIONS = {"checkpoint_id": "dcp", "async_stager": stager}
done = None
def save():
    global done
    finish()
    shutil.rmtree("dcp", ignore_errors=True)
    done = dcp.async_save({"state": state()}, **OPTIONS)
    if hasattr(done, "staging_completion"):
        done.staging_completion.result()  # before the next step changes what it reads
def finish():
    if done is not None:
        getattr(done, "upload_completion", done).result()
measure(save, finish)
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
}
COPIES = {
    "cpu": """
import ctypes
kept = [torch.empty_like(t).copy_(t) for t in blocks]
def save():
    for a, b in zip(kept, blocks):
        ctypes.memmove(a.data_ptr(), b.data_ptr(), b.numel() * b.element_size())
measure(save)
""",
    "cuda": """
kept = [torch.empty_like(t, device="cpu", pin_memory=True) for t in blocks]
side = torch.cuda.Stream()
def save():
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for a, b in zip(kept, blocks):
            a.copy_(b, non_blocking=True)
    torch.cuda.current_stream().wait_stream(side)
measure(save)
""",
}
COPY = {"cpu": "one copy into reused memory", "cuda": "pinned copy on a side stream"}
OURS = """
import flor, json, pathlib
saved, plain, again = [], [], []
with flor.checkpointing(model=net, optimizer=optimizer):
    for number in flor.loop("epoch", range(3 * EPOCHS + 6)):
        began = clock()
        if number % 3 == 0:
            for _ in flor.loop("step", range(1)):
                step()
                wait()
            saved.append(rest(began))
        else:
            step()
            (plain if number % 3 == 1 else again).append(rest(began))
lines = [json.loads(line) for path in pathlib.Path(".flor/runs").glob("*/journal.jsonl")
         for line in path.read_text().splitlines() if '"t": "checkpoint"' in line]
taken = {line["iteration"] // 3: line for line in lines if line["iteration"] % 3 == 0}
counted = sorted(n for n, line in taken.items() if n and line["new_bytes"] > 0.95 * size)
show([taken[n]["stall_seconds"] for n in counted], [saved[n] for n in counted],
     [plain[n] for n in counted], [again[n] for n in counted],
     background=min(line["write_seconds"] for line in lines) * 1e3)
"""


def ways(device: str) -> dict[str, str]:
    """What is measured: a process that uses CUDA cannot fork."""
    found = {name: body for name, body in WAYS.items() if device == "cpu" or "fork" not in name}
    return {"flor": OURS} | found | {COPY[device]: COPIES[device]}


def one(way: str, body: str, state: int, device: str) -> Metrics:
    model, epochs, seconds = MODELS[device], *((5, 3) if device == "cpu" else (3, 5))
    head = TRAINING.format(state=state, device=device, epochs=epochs, seconds=seconds, model=model)
    script = harness.OURS.script(head + body, imports=False)
    with harness.project() as root:
        return harness.run(root, harness.OURS, script, FLOR_OVERHEAD="1").figures


def measure_cost(state: int, device: str, rounds: int) -> dict[str, Metrics]:
    best: dict[str, Metrics] = {}
    found: dict[str, list[Metrics]] = {}
    for turn in range(rounds):
        for way, body in ways(device).items():
            print(f"  round {turn + 1}/{rounds}: {way}", file=sys.stderr, flush=True)
            found.setdefault(way, []).append(one(way, body, state, device))
            print(f"    {found[way][-1]}", file=sys.stderr, flush=True)
    for way, metrics in found.items():
        best[way] = {key: min(item[key] for item in metrics) for key in metrics[0]}
        best[way]["total"] = max(median(item["total"] for item in metrics), 0.0)  # it is noisy
    return best


def measure(subjects: object = None, rounds: int | None = None) -> list[Figure]:
    return figures(measure_cost(STATE_MB, "cpu", rounds or 3), "cpu")


def figures(best: dict[str, Metrics], device: str) -> list[Figure]:
    ours, copying = best["flor"], best[COPY[device]]
    what = f"checkpoint of {ours['size_mb']:,.0f} MB, {device}"
    on_cpu = device == "cpu"
    peers = {name: found for name, found in best.items() if name not in ("flor", COPY["cpu"])}
    return [
        Figure(
            *(f"{what}: stall", "ms", 1.1 * copying["stall"] if on_cpu else 10.0, ours["stall"]),
            {name: found["stall"] for name, found in peers.items()},
        ),
        Figure(
            *(f"{what}: total cost to the loop", "ms", 60.0 if on_cpu else 10.0, ours["total"]),
            {name: found["total"] for name, found in peers.items()},
        ),
        Figure(f"{what}: {COPY[device]}, stall", "ms", None, copying["stall"]),
        Figure(f"{what}: written in the background after", "ms", None, ours["background"]),
        Figure(f"{what}: noise of the totals", "ms", None, ours["noise"]),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=int, default=STATE_MB)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    found = measure_cost(chosen.state, chosen.device, chosen.rounds)
    print(found, file=sys.stderr)
    print(harness.table(figures(found, chosen.device)))
