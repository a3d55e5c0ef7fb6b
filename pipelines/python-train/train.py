#!/usr/bin/env python3
"""A small language model over bytes in plain PyTorch, as an example of a program that pipe runs: ../python-train.yaml.

It knows nothing of pipe. What makes it easy to retry:
- batch size, accumulation, output folder and checkpoint are options;
- the samples of a step depend on the seed and the step alone, so a smaller batch sees the same ones;
- a checkpoint appears under its name when it is complete, and is saved on SIGTERM as well;
- out of memory is not caught: it ends the program with torch's message."""

import argparse
import json
import os
import pathlib
import signal
import sys

import torch
from torch import nn
from torch.nn import functional


class LanguageModel(nn.Module):
    def __init__(self, width, layers, heads, length):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, width), nn.Embedding(length, width)
        block = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, ids):
        length = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=ids.device, dtype=self.head.weight.dtype)
        x = self.tokens(ids) + self.positions(torch.arange(length, device=ids.device))
        return self.head(self.blocks(x, mask=mask, is_causal=True))


def read_data(path):
    """The bytes of a file, or sums such as `12+34=46;`."""
    if path:
        return torch.frombuffer(bytearray(pathlib.Path(path).read_bytes()), dtype=torch.uint8)
    pairs = torch.randint(0, 100, (20_000, 2), generator=torch.Generator().manual_seed(1)).tolist()
    return torch.frombuffer(bytearray("".join(f"{a}+{b}={a + b};" for a, b in pairs).encode()), dtype=torch.uint8)


def samples(data, step, options):
    """The samples of a step, with the byte that follows each."""
    generator = torch.Generator().manual_seed(options.seed * 1_000_003 + step)
    starts = torch.randint(0, len(data) - options.length, (options.effective_batch, 1), generator=generator)
    rows = data[starts + torch.arange(options.length + 1)].long()
    return rows[:, :-1], rows[:, 1:]


def save(folder, state, keep):
    folder.mkdir(parents=True, exist_ok=True)
    path, part = folder / f"checkpoint-{state['step']}.pt", folder / "incomplete.pt"
    with open(part, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    for old in sorted(folder.glob("checkpoint-*.pt"), key=lambda each: int(each.stem.removeprefix("checkpoint-")))[:-keep]:
        old.unlink()


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a text file; default: sums that are generated")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of checkpoints and of model.pt")
    parser.add_argument("--resume", type=pathlib.Path, help="a checkpoint")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=32, help="samples in one forward and backward pass")
    parser.add_argument("--grad-accum", type=int, default=1, help="passes in a step")
    parser.add_argument("--effective-batch", type=int, help="samples in a step, if the last pass is to be smaller; default: the product of both")
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16", "bf16-mixed", "fp16-mixed"], default="fp32")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--length", type=int, default=64, help="bytes of a sample")
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--keep", type=int, default=2, help="checkpoints that are kept")
    options = parser.parse_args()
    options.effective_batch = options.effective_batch or options.batch_size * options.grad_accum
    return options


def main():
    options = parse()
    stopping = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if options.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    mixed = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}.get(options.precision)
    torch.manual_seed(options.seed)
    model = LanguageModel(options.width, options.layers, options.heads, options.length)
    model.to(device, torch.bfloat16 if options.precision == "bf16" else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    scaler = torch.amp.GradScaler(device.type, enabled=mixed == torch.float16)

    step = 0
    if options.resume:
        state = torch.load(options.resume, map_location=device, weights_only=True)
        step = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scaler.load_state_dict(state["scaler"])
    print(f"{sum(each.numel() for each in model.parameters()):,} parameters on {device}, from step {step}", file=sys.stderr, flush=True)

    def save_now():
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
        save(options.out, state, options.keep)

    data = read_data(options.data)
    while step < options.steps and not stopping:
        inputs, targets = samples(data, step, options)
        total = 0.0
        for part, wanted in zip(inputs.split(options.batch_size), targets.split(options.batch_size)):
            with torch.autocast(device.type, dtype=mixed, enabled=mixed is not None):
                logits = model(part.to(device))
                loss = functional.cross_entropy(logits.flatten(0, 1).float(), wanted.to(device).flatten())
            # The mean over the step, whatever the size of its parts.
            share = len(part) / len(inputs)
            scaler.scale(loss * share).backward()
            total += loss.item() * share
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        told = {"step": step, "total_steps": options.steps, "loss": round(total, 5), "lr": options.lr}
        if device.type == "cuda":
            told["peak_memory"] = torch.cuda.max_memory_allocated()
        print(json.dumps(told), flush=True)
        if step % options.save_every == 0 and step < options.steps:
            save_now()
    if step < options.steps:
        save_now()
        sys.exit(128 + stopping[0])
    options.out.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), options.out / "model.pt")


if __name__ == "__main__":
    main()
