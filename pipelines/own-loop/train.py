#!/usr/bin/env python3
"""A loop of one's own with pipe_train: a small language model over bytes, with dropout by sample. ../own-loop.yaml runs it; without
pipe it runs as it is."""

import argparse
import pathlib

import torch
from torch import nn
from torch.nn import functional

import pipe_train

LENGTH, WIDTH, HEADS = 64, 96, 4


class LanguageModel(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True) for _ in range(layers))
        self.dropouts = nn.ModuleList(pipe_train.Dropout(0.1) for _ in range(layers))
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block, dropout in zip(self.blocks, self.dropouts):
            x = dropout(block(x, src_mask=mask, is_causal=True))
        return self.head(x)


def read_data(path):
    """Rows of bytes of a file, or of sums such as `12+34=46;`."""
    if path:
        data = torch.frombuffer(bytearray(pathlib.Path(path).read_bytes()), dtype=torch.uint8)
    else:
        pairs = torch.randint(0, 100, (20_000, 2), generator=torch.Generator().manual_seed(1)).tolist()
        data = torch.frombuffer(bytearray("".join(f"{a}+{b}={a + b};" for a, b in pairs).encode()), dtype=torch.uint8)
    return data[: len(data) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1).long()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a text file; default: sums that are generated")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    options = parser.parse_args()

    rows = read_data(options.data)
    torch.manual_seed(pipe_train.settings().seed)
    model = LanguageModel(options.layers).to(pipe_train.device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)

    def loss_of(part):
        logits = model(part.batch[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), part.batch[:, 1:].flatten())

    with pipe_train.training(
        model, optimizer, rows[64:], steps=options.steps, batch=32, effective_batch=128, clip=1.0, save_every=50,
        evaluate=(rows[:64], loss_of), evaluate_every=50, folder="output",
    ) as run:
        for step in run:
            for part in step:
                step.backward(loss_of(part), weight=len(part))
    if run.rank == 0:
        torch.save(model.state_dict(), run.folder / "model.pt")


if __name__ == "__main__":
    main()
