"""Tell two moons apart with a small neural network. An ordinary training that flor follows.

python train.py
python train.py --kwargs lr=0.5 epochs=10
"""

import flor
import numpy as np

lr = flor.arg("lr", 0.1)
epochs = flor.arg("epochs", 6)
hidden = 8
rng = np.random.default_rng(7)


def moons(count):
    """Points on two interleaved half circles, and which of the two each is on."""
    label = rng.integers(0, 2, count)
    angle = rng.uniform(0, np.pi, count)
    x = np.where(label == 0, np.cos(angle), 1 - np.cos(angle))
    y = np.where(label == 0, np.sin(angle), 0.5 - np.sin(angle))
    return np.stack([x, y], axis=1) + rng.normal(0, 0.15, (count, 2)), label


def forward(net, x):
    inner = np.tanh(x @ net["w1"] + net["b1"])
    return inner, 1 / (1 + np.exp(-(inner @ net["w2"] + net["b2"])))


def gradients(net, x, label):
    inner, guess = forward(net, x)
    loss = -np.mean(np.log(np.where(label == 1, guess, 1 - guess)))
    error = (guess - label)[:, None] / len(x)
    back = error * net["w2"] * (1 - inner**2)
    grads = {"w1": x.T @ back, "b1": back.sum(0), "w2": (inner.T @ error)[:, 0], "b2": error.sum()}
    return loss, grads


train, test = moons(4000), moons(1000)
net = {
    "w1": rng.normal(0, 1, (2, hidden)),
    "b1": np.zeros(hidden),
    "w2": rng.normal(0, 1, hidden),
    "b2": np.zeros(()),
}

with flor.checkpointing(net=net):
    for epoch in flor.loop("epoch", range(epochs)):
        order = rng.permutation(4000).reshape(-1, 100)
        for batch in flor.loop("step", order):
            loss, grads = gradients(net, train[0][batch], train[1][batch])
            for name, grad in grads.items():
                net[name] -= lr * grad
            flor.log("loss", loss)
        acc = flor.log("acc", np.mean((forward(net, test[0])[1] > 0.5) == test[1]))
        print(f"epoch {epoch}: accuracy {acc:.3f}", flush=True)
