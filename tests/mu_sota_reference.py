#!/usr/bin/env python3
"""MU-SOTA as its authors wrote it: the blocks one after the other, and the attention weights of all of them kept.

usage: mu_sota_reference.py --batch 4 --length 256 [--precision bf16-mixed] [--cpu]   times a training step, prints one line of JSON
Needs torch, and a CUDA card except with --cpu. Importable: tests/fixtures/make_mu_sota.py takes the definition from here."""
import argparse
import json
import math
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

GIB = 2**30
FULL = dict(
    vocab_size=50257, n_layers=24, n_blocks=16, block_dim=4, block_heads=2, cross_heads=8, ffn_dim=7488, max_seq_len=512,
)


def attention(x, qkv_weight, qkv_bias, out_weight, out_bias, heads):
    """Causal attention of `heads` heads; its weights [batch, heads, length, length] come back too."""
    batch, length, width = x.shape
    q, k, v = (F.linear(x, qkv_weight, qkv_bias).view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4))
    scores = q @ k.transpose(-2, -1) / math.sqrt(width // heads)
    later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
    weights = scores.masked_fill(later, float("-inf")).softmax(-1)
    merged = (weights @ v).transpose(1, 2).reshape(batch, length, width)
    return F.linear(merged, out_weight, out_bias), weights


class Projection(nn.Module):
    def __init__(self, shape, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape) * 0.02)
        self.bias = nn.Parameter(torch.zeros(bias))


class BlockAttentions(nn.Module):
    def __init__(self, blocks, width, heads):
        super().__init__()
        self.width, self.heads = width, heads
        self.qkv = Projection((blocks, 3 * width, width), (blocks, 3 * width))
        self.out = Projection((blocks, width, width), (blocks, width))

    def forward(self, x, kept):
        outputs = []
        for block, piece in enumerate(x.split(self.width, dim=-1)):
            qkv, out = (self.qkv.weight[block], self.qkv.bias[block]), (self.out.weight[block], self.out.bias[block])
            output, weights = attention(piece, *qkv, *out, self.heads)
            outputs.append(output)
            kept.append(weights)
        return torch.cat(outputs, dim=-1)


class CrossAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = Projection((3 * width, width), (3 * width,))
        self.out = Projection((width, width), (width,))

    def forward(self, x, kept):
        output, weights = attention(x, self.qkv.weight, self.qkv.bias, self.out.weight, self.out.bias, self.heads)
        kept.append(weights)
        return output


class FeedForward(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.fc1 = Projection((inner, width), (inner,))
        self.fc2 = Projection((width, inner), (width,))

    def forward(self, x):
        return F.linear(F.gelu(F.linear(x, self.fc1.weight, self.fc1.bias)), self.fc2.weight, self.fc2.bias)


class Layer(nn.Module):
    def __init__(self, config, dropout):
        super().__init__()
        width = config["n_blocks"] * config["block_dim"]
        self.ln1, self.ln2, self.ln3 = (nn.LayerNorm(width) for _ in range(3))
        self.blocks = BlockAttentions(config["n_blocks"], config["block_dim"], config["block_heads"])
        self.cross = CrossAttention(width, config["cross_heads"])
        self.ffn = FeedForward(width, config["ffn_dim"])
        self.dropout = dropout

    def forward(self, x, kept):
        drop = lambda output: F.dropout(output, self.dropout, self.training)
        x = x + drop(self.blocks(self.ln1(x), kept))
        x = x + drop(self.cross(self.ln2(x), kept))
        return x + drop(self.ffn(self.ln3(x)))


class MuSota(nn.Module):
    def __init__(self, config, dropout=0.0):
        super().__init__()
        width = config["n_blocks"] * config["block_dim"]
        self.tok_emb = nn.Embedding(config["vocab_size"], width)
        self.pos_emb = nn.Embedding(config["max_seq_len"], width)
        nn.init.normal_(self.tok_emb.weight, std=0.02)
        nn.init.normal_(self.pos_emb.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(config, dropout) for _ in range(config["n_layers"]))
        self.ln_f = nn.LayerNorm(width)
        self.dropout = dropout

    def forward(self, ids, kept=None):
        """[batch, length, vocab_size]; `kept` gets the attention weights of every attention."""
        kept = [] if kept is None else kept
        x = self.tok_emb(ids) + self.pos_emb(torch.arange(ids.shape[1], device=ids.device))
        x = F.dropout(x, self.dropout, self.training)
        for layer in self.layers:
            x = layer(x, kept)
        return F.linear(self.ln_f(x), self.tok_emb.weight)


def loss_of(logits, labels):
    """Labels are the tokens themselves: each position is to say the one after it."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=-100)


def reference(batch, length, precision, cpu, config=FULL, dropout=0.1):
    """One training step: forward, backward, clipping, fused AdamW."""
    torch.manual_seed(0)
    device = "cpu" if cpu else "cuda"
    synchronize = (lambda: None) if cpu else torch.cuda.synchronize
    model = MuSota(config, dropout).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, config["vocab_size"], (batch, length), device=device)

    def step():
        synchronize()
        began = time.perf_counter()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "bf16-mixed"):
            logits = model(ids, kept := [])
        loss_of(logits, ids).backward()
        del logits, kept
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        synchronize()
        return (time.perf_counter() - began) * 1000

    warm_up, steps = (1, 3) if cpu else (5, 20)
    ms = statistics.median([step() for _ in range(warm_up + steps)][warm_up:])
    return {
        "what": f"mu-sota {batch}x{length} {precision}",
        "params": sum(parameter.numel() for parameter in model.parameters()),
        "ms": ms,
        "peak_allocated": 0.0 if cpu else torch.cuda.max_memory_allocated() / GIB,
        "peak_reserved": 0.0 if cpu else torch.cuda.max_memory_reserved() / GIB,
        "tokens_per_s": batch * length * 1000 / ms,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--precision", choices=["fp32", "bf16-mixed"], default="fp32")
    parser.add_argument("--cpu", action="store_true")
    given = parser.parse_args()
    print(json.dumps(reference(given.batch, given.length, given.precision, given.cpu)))


if __name__ == "__main__":
    main()
