#!/usr/bin/env python3
"""Trains a small network that labels texts. Written by `pipe init --python`, and yours to change.

It runs by itself, and under `pipe`, which sets batch, seed and output folder, and starts it again where it left off."""

import collections
import csv
import json
import pathlib
import random
import re

import torch
from torch import nn
from torch.nn import functional

import pipe_train

TRAIN = "train.csv"
EVAL = None  # A file, or None: a tenth of the rows is held out.
TEXT = "text"
LABEL = "label"
PREDICTS_NUMBER = False
EPOCHS = 10
BATCH = 64  # Samples in a step. `pipe` may compute them in smaller parts; the result is the same.
WORDS = 20_000  # The most frequent ones are known.
LENGTH = 256  # Words of a text; longer ones are cut.


def read(path):
    text = pathlib.Path(path).read_text(encoding="utf-8-sig")
    if path.endswith(".jsonl"):
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    else:
        rows = list(csv.DictReader(text.splitlines(keepends=True), delimiter=max(",;\t|", key=text.partition("\n")[0].count)))
    return [(words(row.get(TEXT)), row[LABEL]) for row in rows if row.get(LABEL) not in (None, "")]


def words(text):
    return re.findall(r"\w+|[^\w\s]", str(text or "").lower())[:LENGTH]


class Network(nn.Module):
    """The mean of the words of a text, and two layers."""

    def __init__(self, known, outputs):
        super().__init__()
        self.embedding = nn.Embedding(known, 64, padding_idx=0)
        self.dropout = pipe_train.Dropout(0.2)
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, outputs)

    def forward(self, ids):
        count = (ids != 0).sum(1, keepdim=True).clamp(min=1)
        mean = self.embedding(ids).sum(1) / count
        return self.second(self.dropout(torch.relu(self.first(mean))))


def main():
    rows = read(TRAIN)
    if EVAL is None:
        random.Random(0).shuffle(rows)
        held_out, rows = rows[: max(len(rows) // 10, 1)], rows[max(len(rows) // 10, 1) :]
    else:
        held_out = read(EVAL)
    counts = collections.Counter(word for text, _ in rows for word in text)
    # 0 is no word, and 1 a word that is not known.
    ids = {word: number for number, (word, _) in enumerate(counts.most_common(WORDS), 2)}
    classes = sorted({str(label) for _, label in rows})

    def samples(rows):
        if PREDICTS_NUMBER:
            return [(text, float(label)) for text, label in rows]
        return [(text, classes.index(str(label))) for text, label in rows if str(label) in classes]

    def collate(rows):
        texts = [torch.tensor([ids.get(word, 1) for word in text] or [0]) for text, _ in rows]
        return nn.utils.rnn.pad_sequence(texts, batch_first=True), torch.tensor([label for _, label in rows])

    torch.manual_seed(pipe_train.settings().seed)
    model = Network(len(ids) + 2, 1 if PREDICTS_NUMBER else len(classes)).to(pipe_train.device())
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
        model, optimizer, samples(rows), epochs=EPOCHS, batch=BATCH, clip=1.0, collate=collate, folder="output",
        evaluate=(samples(held_out), figures_of), evaluate_every=100,
    ) as run:
        for step in run:
            for part in step:
                step.backward(loss_of(part), weight=len(part))
    if run.rank == 0:
        torch.save(model.state_dict(), run.folder / "model.pt")
        print(f"the model is in {run.folder / 'model.pt'}")


if __name__ == "__main__":
    main()
