"""A training that goes on from any of its checkpoints gives the same numbers, bit for bit."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from tests.e2e.conftest import Project

torch = pytest.importorskip("torch")
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    ),
]

# Run as it is, it trains from the beginning; with RESUME it goes on behind that epoch's steps.
TRAINING = """
import json, os, random, sys
import numpy as np, torch, flor
from torch import nn
from torch.utils.data import DataLoader, Dataset

DEVICE, WORKERS = os.environ["DEVICE"], int(os.environ["WORKERS"])
RESUME = int(os.environ.get("RESUME", -1))
if DEVICE == "cuda":
    torch.use_deterministic_algorithms(True)
torch.set_num_threads(1)
random.seed(1 + RESUME); np.random.seed(2 + RESUME); torch.manual_seed(3 + RESUME)

class Points(Dataset):
    def __init__(self):
        draws = torch.Generator().manual_seed(7)
        self.x = torch.randn(96, 12, generator=draws)
        self.y = (self.x[:, 0] * self.x[:, 1] > 0).long()
    def __len__(self):
        return len(self.x)
    def __getitem__(self, index):
        return self.x[index] + 0.1 * torch.randn(12), self.y[index]

data = Points()
loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=WORKERS)
net = nn.Sequential(
    nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 2)
).to(DEVICE)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=0)
best, patience, history = 0.0, 0, []
losses = {}
if RESUME >= 0:
    state = flor.load(
        sys.argv[1], epoch=RESUME, with_rng=True, model=net, optimizer=optimizer, scheduler=scheduler
    )
    best, patience, history = state["best"], state["patience"], state["history"]

def train_epoch():
    net.train()
    for x, y in flor.loop("step", loader):
        optimizer.zero_grad()
        noise = random.random() + np.random.rand()
        loss = nn.functional.cross_entropy(net(x.to(DEVICE) * (1 + 0.01 * noise)), y.to(DEVICE))
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        losses.setdefault(epoch, []).append(loss.item().hex())

with flor.checkpointing(model=net, optimizer=optimizer, scheduler=scheduler):
    for epoch in flor.loop("epoch", range(max(RESUME, 0), 6)):
        if epoch != RESUME:
            train_epoch()
        net.eval()
        with torch.no_grad():
            acc = (net(data.x.to(DEVICE)).argmax(1) == data.y.to(DEVICE)).float().mean().item()
        scheduler.step(acc)
        history.append(acc)
        if acc > best:
            best, patience = acc, 0
        else:
            patience += 1
            if patience >= 3:
                break
weights = {name: value.cpu().numpy().tobytes().hex() for name, value in net.state_dict().items()}
rest = [optimizer.param_groups[0]["lr"], best, patience, history, epoch]
drawn = [random.random(), np.random.rand(), torch.rand(1).item()]
json.dump([losses, weights, rest, drawn], open("result.json", "w"))
"""


def train(project: Project, *words: str, **env: str) -> tuple[dict[str, list[str]], Any]:
    """The losses of each epoch, and all that is there at the end."""
    deterministic = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    done = project.python("train.py", *words, **deterministic, **env)
    assert "flor" not in done.stderr, done.stderr
    losses, *rest = json.loads((project.root / "result.json").read_text())
    return losses, rest


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("workers", ["0", "2"])
def test_each_epoch_continues_to_the_same_end(project: Project, device: str, workers: str) -> None:
    """Restored in a new process that had drawn other random numbers."""
    project.write("train.py", TRAINING)
    env = {"DEVICE": device, "WORKERS": workers}
    losses, end = train(project, FLOR_OVERHEAD="inf", **env)
    run_id = project.journals()[-1][0]["run_id"]
    taken = project.lines("checkpoint")
    kept = [line["iteration"] for line in taken if line["boundary"] is not None]
    assert kept == list(range(len(losses)))
    assert len(taken) == len(kept) + 1  # the scheduler's step came after the last of them

    for epoch in kept:
        later, same_end = train(project, run_id, RESUME=str(epoch), FLOR_DISABLE="1", **env)
        assert later == {key: value for key, value in losses.items() if int(key) > epoch}
        assert same_end == end


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("workers", ["0", "2"])
def test_training_is_the_same_with_and_without_flor(
    project: Project, device: str, workers: str
) -> None:
    project.write("train.py", TRAINING)
    env = {"DEVICE": device, "WORKERS": workers}

    without = train(project, FLOR_DISABLE="1", **env)

    assert train(project, FLOR_OVERHEAD="inf", **env) == without
    assert train(project, FLOR_OVERHEAD="0", **env) == without


# --- other ways to train ----------------------------------------------------------------------

# Each sets up `objects` and `step`; a run is seven epochs of three steps.
FRAME = """
import json, os, sys
import torch, flor
from torch import nn
torch.set_num_threads(1)
RESUME = int(os.environ.get("RESUME", -1))
torch.manual_seed(5 + RESUME)
draws = torch.Generator().manual_seed(1)
X, Y = torch.randn(24, 8, generator=draws), torch.randn(24, 1, generator=draws)
{setup}
trace = []
if RESUME >= 0:
    state = flor.load(sys.argv[1], epoch=RESUME, with_rng=True, **objects)
    for name in {carried!r}:
        globals()[name] = state[name]
with flor.checkpointing(**objects):
    for epoch in flor.loop("epoch", range(RESUME + 1, 7)):
        for index in flor.loop("step", range(3)):
            x, y = X[index * 8:index * 8 + 8], Y[index * 8:index * 8 + 8]
            trace.append([epoch, float(step(x, y)).hex()])
json.dump(trace, open("result.json", "w"))
"""
NET = "net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 1))\n"
STEP = """
def step(x, y):
    optimizer.zero_grad()
    loss = (net(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    return loss
"""


def plain(optimizer: str, more: str = "") -> str:
    return f"{NET}optimizer = torch.optim.{optimizer}\n{STEP}{more}\n"


WAYS: dict[str, tuple[str, list[str]]] = {
    "momentum": (
        plain("SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)")
        + "objects = dict(net=net, optimizer=optimizer)",
        [],
    ),
    "a scheduler that steps with each batch": (
        plain("AdamW(net.parameters(), lr=0.01, amsgrad=True)")
        + """
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=21)
once = step
def step(x, y):
    loss = once(x, y)
    scheduler.step()
    return loss
objects = dict(net=net, optimizer=optimizer, scheduler=scheduler)
""",
        [],
    ),
    "only the scheduler is declared": (
        plain("Adam(net.parameters(), lr=0.01)")
        + """
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
once = step
def step(x, y):
    loss = once(x, y)
    scheduler.step()
    return loss
objects = dict(scheduler=scheduler)
""",
        [],
    ),
    "gradients that are accumulated over epochs": (
        NET
        + """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
count = 0
def step(x, y):
    global count
    loss = (net(x) - y).square().mean()
    loss.backward()
    count += 1
    if count % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
    return loss
objects = dict(net=net, optimizer=optimizer)
""",
        ["count"],
    ),
    "two optimizers, one of which steps now and then": (
        """
body, head = nn.Linear(8, 16), nn.Linear(16, 1)
ob = torch.optim.SGD(body.parameters(), lr=0.1)
oh = torch.optim.SGD(head.parameters(), lr=0.1)
count = 0
def step(x, y):
    global count
    oh.zero_grad()
    loss = (head(torch.tanh(body(x))) - y).square().mean()
    loss.backward()
    oh.step()
    count += 1
    if count % 5 == 0:
        ob.step()
        ob.zero_grad()
    return loss
objects = dict(body=body, head=head, ob=ob, oh=oh)
""",
        ["count"],
    ),
    "an average of the weights by hand": (
        plain("Adam(net.parameters(), lr=0.01)")
        + """
mean = {key: value.clone() for key, value in net.state_dict().items()}
once = step
def step(x, y):
    once(x, y)
    for key, value in net.state_dict().items():
        mean[key].mul_(0.9).add_(value, alpha=0.1)
    return sum(value.sum().item() for value in mean.values())
objects = dict(net=net, optimizer=optimizer, mean=mean)
""",
        [],
    ),
    "torch's average of the weights": (
        plain("Adam(net.parameters(), lr=0.01)")
        + """
ema = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
once = step
def step(x, y):
    once(x, y)
    ema.update_parameters(net)
    return ema(x).sum()
objects = dict(net=net, optimizer=optimizer, ema=ema)
""",
        [],
    ),
    "half of the network is frozen, two layers share weights": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 1)
        self.b.weight = self.a.weight
        self.body.requires_grad_(False)
    def forward(self, x):
        return self.head(torch.tanh(self.b(torch.tanh(self.a(self.body(x))))))
net = Net()
optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=0.01)
"""
        + STEP
        + "objects = dict(net=net, optimizer=optimizer)",
        [],
    ),
    "a state that the network carries on itself": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head, self.hidden, self.rate = nn.GRUCell(8, 8), nn.Linear(8, 1), None, 0.5
    def forward(self, x):
        hidden = self.cell(x, self.hidden)
        self.hidden, self.rate = hidden.detach(), self.rate * 0.99
        return self.head(nn.functional.dropout(hidden, self.rate))
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
"""
        + STEP
        + "objects = dict(net=net, optimizer=optimizer)",
        [],
    ),
    "two networks that play against each other": (
        NET
        + """
other = nn.Linear(1, 1)
optimizers = [torch.optim.Adam(n.parameters(), lr=0.01, betas=(0.5, 0.9)) for n in (net, other)]
def step(x, y):
    for optimizer, sign in zip(optimizers, (1, -1)):
        for each in optimizers:
            each.zero_grad()
        loss = sign * (other(net(x)) - y).square().mean()
        loss.backward()
        optimizer.step()
    return loss
objects = dict(net=net, other=other, optimizers=optimizers)
""",
        [],
    ),
    "a scaler of gradients": (
        plain("SGD(net.parameters(), lr=0.01)")
        + """
scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
def step(x, y):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = (net(x) - y).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss * scaler.get_scale()
objects = dict(net=net, optimizer=optimizer, scaler=scaler)
""",
        [],
    ),
    "weights that nobody sees change": (
        """
weights = torch.zeros(8, 1)
alias = weights.numpy()
def step(x, y):
    grad = x.T @ (x @ weights - y) + 0.1 * torch.randn(8, 1)
    alias[...] -= 0.01 * grad.numpy()
    weights.data.add_(grad, alpha=-0.01)
    return weights.sum()
objects = dict(weights=weights)
""",
        [],
    ),
    "a generator of its own": (
        NET
        + """
own = torch.Generator().manual_seed(11 + RESUME)
optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=3)
def step(x, y):
    noise = torch.rand(x.shape, generator=own)
    def closure():
        optimizer.zero_grad()
        loss = (net(x * noise) - y).square().mean()
        loss.backward()
        return loss
    return optimizer.step(closure)
objects = dict(net=net, optimizer=optimizer, own=own)
""",
        [],
    ),
    "a network that is wrapped": (
        plain("Adam(net.parameters(), lr=0.01)")
        + "net = nn.DataParallel(net)\nobjects = dict(net=net, optimizer=optimizer)",
        [],
    ),
}


def whole_and_later(project: Project) -> tuple[list[Any], list[Any]]:
    """What a training traced, and what it traces once it goes on behind the steps of epoch 3."""
    project.python("train.py", FLOR_OVERHEAD="inf")
    whole = json.loads((project.root / "result.json").read_text())
    run_id = project.journals()[-1][0]["run_id"]
    project.python("train.py", run_id, RESUME="3", FLOR_DISABLE="1")
    return whole, json.loads((project.root / "result.json").read_text())


@pytest.mark.parametrize("way", WAYS)
def test_other_ways_to_train_continue_exactly(project: Project, way: str) -> None:
    setup, carried = WAYS[way]
    project.write("train.py", FRAME.format(setup=setup, carried=carried))
    whole, later = whole_and_later(project)

    assert later == [entry for entry in whole if entry[0] > 3]


# --- gradients --------------------------------------------------------------------------------

NETS = """
import sys, torch, flor
from torch import nn
body, head = nn.Linear(4, 4), nn.Linear(4, 1)
opt = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
ob, oh = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (body, head))
sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
objects = dict(body=body, head=head, opt=opt, ob=ob, oh=oh, sched=sched)
x = torch.randn(8, 4)
def backward():
    loss = head(body(x)).square().mean()
    loss.backward()
    return loss
"""
LOOPS = """
with flor.checkpointing(**objects):
    for epoch in flor.loop("epoch", range(3)):
        for step in flor.loop("step", range(2)):
            {step}
        {after}
"""
WHICH = """
exec(open("train.py").read().partition("# the training")[0])
flor.load(epoch=1, **objects)
print(*(name for name in ("body", "head") if objects[name].weight.grad is not None))
"""
PLAIN = "opt.zero_grad(); backward(); opt.step()"
BOTH = "oh.zero_grad(); ob.zero_grad(); backward(); oh.step(); ob.step()"
TRAINER = """
class Trainer:
    def __init__(self): self.opt, self.sched = opt, sched
    def step(self):
        self.opt.zero_grad()
        backward()
        self.opt.step()
    def fit(self):
        with flor.checkpointing(**objects):
            for epoch in flor.loop("epoch", range(3)):
                self.run()
                self.validate()
                self.sched.step()
    def run(self):
        for step in flor.loop("step", range(2)):
            self.step()
    def validate(self): return {validate}
Trainer().fit()
"""
GIVEN = """
def train_epoch(net, optimizer):
    for step in flor.loop("step", range(2)):
        train_step(optimizer)
def train_step(o):
    o.zero_grad()
    backward()
    nn.utils.clip_grad_norm_(body.parameters(), 1.0)
    o.step()
def main():
    with flor.checkpointing(**objects):
        for epoch in flor.loop("epoch", range(3)):
            train_epoch(body, opt)
            sched.step()
main()
"""
AMP = (
    "opt.zero_grad(); scaler.scale(backward()); scaler.unscale_(opt); "
    "scaler.step(opt); scaler.update()"
)
GAN = "ob.zero_grad(); backward(); ob.step(); oh.zero_grad(); backward(); oh.step()"
GRADIENTS = {
    "the usual loop": (LOOPS.format(step=PLAIN, after="sched.step(); head.eval(); head(x)"), ""),
    "two optimizers": (LOOPS.format(step=BOTH, after="pass"), ""),
    "networks that play against each other": (LOOPS.format(step=GAN, after="pass"), ""),
    "the network clears": (LOOPS.format(step=PLAIN.replace("opt.z", "body.z"), after=""), "head"),
    "one of two is accumulated": (
        LOOPS.format(step="oh.zero_grad(); backward(); oh.step()", after="ob.step()"),
        "body",
    ),
    "a step afterwards": (LOOPS.format(step="opt.zero_grad(); backward()", after="opt.step()"),
                          "body head"),
    "clipped afterwards": (
        LOOPS.format(step=PLAIN, after="nn.utils.clip_grad_norm_(body.parameters(), 1.0)"),
        "body head",
    ),
    "read afterwards": (LOOPS.format(step=PLAIN, after="flor.log('n', body.weight.grad.norm())"),
                        "body head"),
    "a scaler": ("scaler = torch.amp.GradScaler('cpu')\n" + LOOPS.format(step=AMP, after=""), ""),
    "a trainer": (TRAINER.format(validate="head(x)"), ""),
    "a trainer that reads them": (TRAINER.format(validate="head.weight.grad"), "body head"),
    "an optimizer that is handed on": (GIVEN, ""),
}  # fmt: skip


@pytest.mark.parametrize("how", GRADIENTS)
def test_gradients_are_held_unless_they_are_cleared_before_use(project: Project, how: str) -> None:
    training, expected = GRADIENTS[how]
    project.write("train.py", f"{NETS}\n# the training\n{training}")
    told = project.python("train.py", FLOR_OVERHEAD="inf").stderr

    assert told == ""
    assert project.python("-c", WHICH, FLOR_DISABLE="1").stdout.strip() == expected


def test_results_of_a_long_training_are_the_same_with_checkpoints_all_the_time(
    project: Project,
) -> None:
    """Copying on several cores and writing meanwhile changes nothing: megabytes, all cores."""
    project.write(
        "train.py",
        "import hashlib, torch, flor\n"
        "torch.manual_seed(0)\n"
        "net = torch.nn.Sequential(*(torch.nn.Linear(768, 768) for _ in range(8)))\n"
        "optimizer = torch.optim.Adam(net.parameters())\n"
        "x = torch.randn(8, 768)\n"
        "with flor.checkpointing(model=net, optimizer=optimizer):\n"
        "    for epoch in flor.loop('epoch', range(12)):\n"
        "        for _ in flor.loop('step', range(2)):\n"
        "            optimizer.zero_grad()\n"
        "            net(x).square().mean().backward()\n"
        "            optimizer.step()\n"
        "print(hashlib.sha256(b''.join(p.detach().numpy().tobytes() for p in net.parameters()))"
        ".hexdigest())\n",
    )

    recorded = project.python("train.py", FLOR_OVERHEAD="inf").stdout

    assert len(recorded.strip()) == hashlib.sha256().digest_size * 2
    assert project.python("train.py", FLOR_DISABLE="1").stdout == recorded


SOURCES = """
import json, os, random, sys
import flor
RESUME = int(os.environ.get("RESUME", -1))
class Batches:
    def __init__(self): self.rng, self.passes = random.Random(3 + RESUME), 0
    def __iter__(self):
        self.passes += 1
        return iter([self.rng.random() + self.passes for _ in range(3)])
weights, batches, trace = [0.0], Batches(), []
if RESUME >= 0:
    flor.load(sys.argv[1], epoch=RESUME, weights=weights, step=batches)
with flor.checkpointing(weights=weights):
    for epoch in flor.loop("epoch", range(RESUME + 1, 7)):
        for x in flor.loop("step", batches):
            weights[0] += x
            trace.append([epoch, weights[0].hex()])
json.dump(trace, open("result.json", "w"))
"""


def test_an_iterable_of_ones_own_goes_on_where_it_was(project: Project) -> None:
    """It was not declared: the loop that ran over it names it."""
    project.write("train.py", SOURCES)
    whole, later = whole_and_later(project)

    assert later == [entry for entry in whole if entry[0] > 3]
