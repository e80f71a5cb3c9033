"""Trains a small language model. Read by propagation.py as text, never run."""

import math
import time
from pathlib import Path

import torch
from torch import nn

import flor

WIDTH, LAYERS, CONTEXT = 256, 4, 128
BATCH, STEPS, EVERY = 32, 20_000, 500
RATE, WARMUP, CLIP = 3e-4, 1_000, 1.0


def read(path):
    text = Path(path).read_text()
    letters = sorted(set(text))
    index = {letter: number for number, letter in enumerate(letters)}
    tokens = torch.tensor([index[letter] for letter in text])
    split = int(0.9 * len(tokens))
    return tokens[:split], tokens[split:], letters


def sample(tokens, device):
    starts = torch.randint(len(tokens) - CONTEXT - 1, (BATCH,))
    inputs = torch.stack([tokens[s : s + CONTEXT] for s in starts])
    targets = torch.stack([tokens[s + 1 : s + CONTEXT + 1] for s in starts])
    return inputs.to(device), targets.to(device)


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.tokens = nn.Embedding(size, WIDTH)
        self.places = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, LAYERS)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, size)

    def forward(self, inputs):
        length = inputs.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.tokens(inputs) + self.places[:length]
        hidden = self.blocks(hidden, mask=mask.to(inputs.device))
        flor.log("hidden_norm", hidden.norm(dim=-1).mean().item())
        return self.head(self.norm(hidden))


def rate_at(step):
    if step < WARMUP:
        return RATE * step / WARMUP
    progress = (step - WARMUP) / (STEPS - WARMUP)
    return RATE * 0.5 * (1 + math.cos(math.pi * progress))


@torch.no_grad()
def evaluate(model, tokens, device, rounds=20):
    model.eval()
    losses = []
    for _ in range(rounds):
        inputs, targets = sample(tokens, device)
        logits = model(inputs)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        losses.append(loss.item())
    mean = sum(losses) / len(losses)
    flor.log("perplexity", math.exp(mean))
    model.train()
    return mean


def train(path="corpus.txt", device="cuda"):
    train_tokens, val_tokens, letters = read(path)
    model = Model(len(letters)).to(device)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95))
    scaler = torch.amp.GradScaler()
    best = float("inf")
    began = time.time()
    for step in flor.loop("step", range(STEPS)):
        rate = rate_at(step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        inputs, targets = sample(train_tokens, device)
        with torch.autocast(device):
            logits = model(inputs)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            flor.log("entropy", torch.distributions.Categorical(logits=logits).entropy().mean())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        flor.log("clipped", float(norm > CLIP))
        if step % EVERY == 0:
            val_loss = evaluate(model, val_tokens, device)
            seconds = time.time() - began
            flor.log("speed", (step + 1) * BATCH * CONTEXT / seconds)
            if val_loss < best:
                best = val_loss
                torch.save({"model": model.state_dict(), "step": step}, "model.pt")
            print(f"step {step}: {val_loss:.3f}")
    return best


if __name__ == "__main__":
    train()
