"""Checkpoints of trainings on a GPU, in the ways that only a GPU has."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Project

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

HEAD = """
import os, sys, json, time
import torch, flor
from torch import nn
torch.manual_seed(0)
"""


def told(project: Project, script: str, **env: str) -> str:
    """What the script prints; it is to warn of nothing. A slow disk may be waited for."""
    project.write("train.py", HEAD + script)
    done = project.python("train.py", **{"FLOR_OVERHEAD": "inf", **env})
    warnings = done.stderr.replace("flor: writing the last checkpoint", "")
    assert "flor" not in warnings, done.stderr
    return done.stdout.strip()


def test_graphs_are_captured_while_a_checkpoint_is_on_its_way(project: Project) -> None:
    script = """
big = torch.randn(200_000_000, device="cuda")
x = torch.zeros(256, 256, device="cuda")
weights = torch.eye(256, device="cuda")
x @ weights  # its library is to be ready before the capture
with flor.checkpointing(big=big, weights=weights):
    for epoch in flor.loop("epoch", range(4)):
        for step in flor.loop("step", range(2)):
            weights += 1
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(2000):
                x = x @ weights * 0.001
        graph.replay()
torch.cuda.synchronize()
print(weights[0, 1].item())
"""
    assert told(project, script) == "8.0"
    assert len(project.lines("checkpoint")) >= 4


def test_without_room_on_the_device_the_state_is_still_the_one_of_its_epoch(
    project: Project,
) -> None:
    script = """
free, total = torch.cuda.mem_get_info()
weights = torch.zeros(100_000_000, device="cuda")
filler = torch.empty(int(free - 0.08 * total), dtype=torch.uint8, device="cuda")
with flor.checkpointing(weights=weights):
    for epoch in flor.loop("epoch", range(3)):
        for step in flor.loop("step", range(2)):
            weights += 1
        weights += 100
del filler
for epoch in range(3):
    state = flor.load(os.environ.get("FLOR_RUN") or flor.commit(), epoch=epoch) if epoch == 0 else flor.load(state.run_id, epoch=epoch)
    print(torch.unique(state["weights"]).tolist(), end=" ")
"""
    assert told(project, script) == "[2.0] [104.0] [206.0]"


def test_every_kind_of_tensor_comes_back(project: Project) -> None:
    script = """
def tensors(scale):
    draws = torch.Generator(device="cuda").manual_seed(scale)
    base = torch.randn(300, 2000, device="cuda", generator=draws)
    kinds = {str(t): base.to(t) for t in (torch.float64, torch.bfloat16, torch.float16,
             torch.int8, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn)}
    odd = {"transposed": base.t(), "strided": base[::2, ::3], "view": base[1:], "scalar": base[0, 0],
           "empty": base[:0], "last": torch.randn(4, 8, 64, 64, device="cuda", generator=draws)
           .to(memory_format=torch.channels_last), "host": base.cpu()}
    return kinds | odd | {"base": base, "tied": base}
held = tensors(0)
with flor.checkpointing(held=held):
    for epoch in flor.loop("epoch", range(3)):
        for step in flor.loop("step", range(1)):
            held.update(tensors(epoch))
        held.clear()
run = flor.commit()
for epoch in range(3):
    state, expected = flor.load(run, epoch=epoch)["held"], tensors(epoch)
    for name, tensor in expected.items():
        found = state[name]
        assert found.dtype == tensor.dtype and found.shape == tensor.shape, name
        same = found.cpu().contiguous().view(torch.uint8) if tensor.dim() else found.cpu()
        there = tensor.cpu().contiguous().view(torch.uint8) if tensor.dim() else tensor.cpu()
        assert torch.equal(same, there), (epoch, name)
print("same")
"""
    assert told(project, script) == "same"


def test_a_state_that_grows_beyond_the_first_guess(project: Project) -> None:
    script = """
held = {"weights": torch.zeros(1000, device="cuda")}
with flor.checkpointing(held=held):
    for epoch in flor.loop("epoch", range(4)):
        for step in flor.loop("step", range(1)):
            held["weights"] = torch.full((10 ** (4 + epoch),), float(epoch), device="cuda")
run = flor.commit()
print([flor.load(run, epoch=e)["held"]["weights"].sum().item() for e in range(4)])
"""
    assert told(project, script) == "[0.0, 100000.0, 2000000.0, 30000000.0]"


def test_memory_of_the_device_is_given_back(project: Project) -> None:
    script = """
weights = torch.zeros(100_000_000, device="cuda")
before = torch.cuda.memory_allocated()
with flor.checkpointing(weights=weights):
    for epoch in flor.loop("epoch", range(2)):
        for step in flor.loop("step", range(1)):
            weights += 1
for _ in range(600):  # the last copy goes when it is on the host
    if torch.cuda.memory_allocated() == before:
        break
    time.sleep(0.1)
print(torch.cuda.memory_allocated() - before)
"""
    assert told(project, script) == "0"


def test_two_networks_of_one_process_are_kept_apart(project: Project) -> None:
    script = """
a, b = (nn.Linear(1000, 1000).cuda() for _ in range(2))
with flor.checkpointing(a=a):
    for epoch in flor.loop("epoch", range(2)):
        for step in flor.loop("step", range(1)):
            with torch.no_grad():
                a.weight.fill_(epoch)
with flor.checkpointing(b=b):
    for other in flor.loop("other", range(2)):
        for step in flor.loop("step", range(1)):
            with torch.no_grad():
                b.weight.fill_(10 + other)
run = flor.commit()
print(flor.load(run, epoch=1)["a"]["weight"].mean().item(), flor.load(run, other=0)["b"]["weight"].mean().item())
"""
    assert told(project, script) == "1.0 10.0"
