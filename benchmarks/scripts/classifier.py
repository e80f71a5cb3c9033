"""Trains a convolutional classifier of small images. Read by propagation.py as text, never run."""

import argparse
import random

import datasets
import torch
from torch import nn
from torch.utils.data import DataLoader

import flor


class Net(nn.Module):
    def __init__(self, channels, classes, dropout=0.1):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.body = nn.Sequential(nn.ReLU(), nn.Conv2d(channels, channels, 3), nn.ReLU())
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(channels, classes)

    def forward(self, images):
        features = self.stem(images)
        features = self.body(features)
        pooled = self.pool(features).flatten(1)
        dropped = self.dropout(pooled)
        flor.log("activation", dropped.abs().mean().item())
        return self.head(dropped)


def accuracy(scores, labels):
    hits = scores.argmax(dim=1) == labels
    return hits.float().mean().item()


def validate(net, loader, device):
    net.eval()
    total, correct, loss_sum = 0, 0, 0.0
    with torch.no_grad():
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            scores = net(images)
            loss = nn.functional.cross_entropy(scores, labels)
            loss_sum += loss.item() * len(labels)
            correct += (scores.argmax(dim=1) == labels).sum().item()
            total += len(labels)
            flor.log("margin", (scores.max(dim=1).values - scores.mean(dim=1)).mean().item())
    mean_loss = loss_sum / max(total, 1)
    share = correct / max(total, 1)
    flor.log("val_loss", mean_loss)
    return mean_loss, share


def train(options):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set, val_set = datasets.images(options.folder)
    train_loader = DataLoader(train_set, batch_size=options.batch, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=2 * options.batch)
    net = Net(options.channels, train_set.classes).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=options.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
    criterion = nn.CrossEntropyLoss(label_smoothing=options.smoothing)
    best, patience = 0.0, options.patience
    for epoch in flor.loop("epoch", range(options.epochs)):
        net.train()
        running, seen = 0.0, 0
        for images, labels in flor.loop("step", train_loader):
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            scores = net(images)
            loss = criterion(scores, labels)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(net.parameters(), options.clip)
            flor.log("grad_norm", norm.item())
            optimizer.step()
            running += loss.item() * len(labels)
            seen += len(labels)
        scheduler.step()
        train_loss = running / seen
        val_loss, share = validate(net, val_loader, device)
        flor.log("gap", val_loss - train_loss)
        if share > best:
            best, patience = share, options.patience
            torch.save(net.state_dict(), options.output)
        else:
            patience -= 1
        if patience == 0:
            print(f"stopped after epoch {epoch}")
            break
    return best


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="data")
    parser.add_argument("--output", default="best.pt")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--patience", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--smoothing", type=float, default=0.0)
    options = parser.parse_args()
    random.seed(0)
    torch.manual_seed(0)
    print("best accuracy:", train(options))


if __name__ == "__main__":
    main()
