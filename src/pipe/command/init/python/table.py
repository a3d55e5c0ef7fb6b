#!/usr/bin/env python3
"""Trains a small network on a table. Written by `pipe init --python`, and yours to change.

It runs by itself, and under `pipe`, which sets batch, seed and output folder, and starts it again where it left off."""

import csv
import json
import pathlib
import random

import torch
from torch import nn
from torch.nn import functional

import pipe_train

TRAIN = "train.csv"
EVAL = None  # A file, or None: a tenth of the rows is held out.
LABEL = "label"
PREDICTS_NUMBER = False
NUMBERS = ["a", "b"]
CATEGORIES = ["c"]
EPOCHS = 10
BATCH = 64  # Samples in a step. `pipe` may compute them in smaller parts; the result is the same.


def read(path):
    text = pathlib.Path(path).read_text(encoding="utf-8-sig")
    if path.endswith(".jsonl"):
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    else:
        lines = text.splitlines()
        rows = list(csv.DictReader(lines, delimiter=max(",;\t|", key=lines[0].count)))
    return [row for row in rows if row.get(LABEL) not in (None, "")]


def number(value):
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


class Encoder:
    """Numbers with mean 0 and deviation 1, and a column of zeros and ones for each value of a category."""

    def __init__(self, rows):
        self.scales = []
        for name in NUMBERS:
            known = torch.tensor([value for value in (number(row.get(name)) for row in rows) if value is not None] or [0.0])
            self.scales.append((float(known.mean()), float(known.std(correction=0)) or 1.0))
        self.values = [(name, value) for name in CATEGORIES for value in sorted({str(row.get(name)) for row in rows})]
        self.classes = sorted({str(row[LABEL]) for row in rows})

    @property
    def width(self):
        return len(self.scales) + len(self.values)

    def features(self, row):
        numbers = [(number(row.get(name)), scale) for name, scale in zip(NUMBERS, self.scales)]
        scaled = [0.0 if value is None else (value - mean) / deviation for value, (mean, deviation) in numbers]
        return scaled + [float(str(row.get(name)) == value) for name, value in self.values]

    def target(self, row):
        return number(row[LABEL]) if PREDICTS_NUMBER else self.classes.index(str(row[LABEL]))

    def dataset(self, rows):
        rows = [row for row in rows if (number(row[LABEL]) is not None if PREDICTS_NUMBER else str(row[LABEL]) in self.classes)]
        return torch.utils.data.TensorDataset(
            torch.tensor([self.features(row) for row in rows]), torch.tensor([self.target(row) for row in rows])
        )


def main():
    rows = read(TRAIN)
    if EVAL is None:
        random.Random(0).shuffle(rows)
        held_out, rows = rows[: max(len(rows) // 10, 1)], rows[max(len(rows) // 10, 1) :]
    else:
        held_out = read(EVAL)
    encoder = Encoder(rows)
    outputs = 1 if PREDICTS_NUMBER else len(encoder.classes)

    torch.manual_seed(pipe_train.settings().seed)
    model = nn.Sequential(
        nn.Linear(encoder.width, 64), nn.ReLU(), pipe_train.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), pipe_train.Dropout(0.1),
        nn.Linear(64, outputs),
    ).to(pipe_train.device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss_of(part):
        x, y = part
        found = model(x)
        return functional.mse_loss(found[:, 0], y) if PREDICTS_NUMBER else functional.cross_entropy(found, y)

    def figures_of(part):
        x, y = part
        found = model(x)
        if PREDICTS_NUMBER:
            return {"loss": functional.mse_loss(found[:, 0], y), "mae": (found[:, 0] - y).abs().mean()}
        return {"loss": functional.cross_entropy(found, y), "accuracy": (found.argmax(1) == y).float().mean()}

    with pipe_train.training(
        model, optimizer, encoder.dataset(rows), epochs=EPOCHS, batch=BATCH, clip=1.0, folder="output",
        evaluate=(encoder.dataset(held_out), figures_of), evaluate_every=100,
    ) as run:
        for step in run:
            for part in step:
                step.backward(loss_of(part), weight=len(part))
    if run.rank == 0:
        torch.save(model.state_dict(), run.folder / "model.pt")
        print(f"the model is in {run.folder / 'model.pt'}")


if __name__ == "__main__":
    main()
