#!/usr/bin/env python3
"""Decoder models on a card: an adapter of a model of 0.3 billion parameters through a real out-of-memory with the curve of the
undisturbed run, and the times of steps beside transformers in the same process order. The card is made small with memory.limit.

usage: gpu_decoders.py --bin FOLDER-OF-THE-BINARIES [oom] [steps]
Needs a python3 with torch, transformers and safetensors, and a CUDA card."""
import argparse
import glob
import json
import os
import subprocess
import tempfile
import time

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
CHAT = os.path.join(HERE, "fixtures", "chat-llama")
ENV = {**os.environ, "LD_LIBRARY_PATH": os.path.join(torch.__path__[0], "lib")}
SIZES = dict(hidden_size=1024, intermediate_size=4096, num_hidden_layers=16, num_attention_heads=16, num_key_value_heads=4,
             max_position_embeddings=2048, vocab_size=420, bos_token_id=0, eos_token_id=2, pad_token_id=3)
LLAMA_1B = dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
                vocab_size=128256, max_position_embeddings=8192, tie_word_embeddings=True)


def model_folder(folder):
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES)).to(torch.bfloat16).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        open(os.path.join(folder, name), "wb").write(open(os.path.join(CHAT, name), "rb").read())


def talks(path):
    """The conversations of the fixture, several of them in one."""
    rows = [json.loads(line)["messages"] for line in open(os.path.join(CHAT, "train.jsonl"))]
    with open(path, "w") as out:
        for first in range(256):
            messages = [m for number in range(12) for m in rows[(first * 7 + number) % len(rows)] if m["role"] != "system"]
            out.write(json.dumps({"messages": messages}) + "\n")


def out_of_memory(binaries):
    with tempfile.TemporaryDirectory() as work:
        model_folder(os.path.join(work, "model"))
        talks(os.path.join(work, "talks.jsonl"))
        open(os.path.join(work, "chat.yaml"), "w").write(
            "version: 1\nname: chat\nmodel: {from: model}\nadapter: {rank: 16, dropout: 0.05}\n"
            "data: {train: talks.jsonl, fields: {messages: messages}, max_length: 1024}\n"
            "train: {steps: 12, batch: 32, effective_batch: 32, precision: fp32, checkpointing: false, split: fixed,"
            " optimizer: {lr: 2.0e-3}}\nmemory: {limit: 24g}\nsave: {every: 4}\ncontainer: {gpus: 1}\nengine: process\n")
        curves = {}
        for name, more in (("whole", ["--set", "memory.limit=100g"]), ("small", [])):
            ended = subprocess.run([f"{binaries}/pipe", "run", "chat.yaml", "--name", name, *more], cwd=work, env=ENV, capture_output=True, text=True)
            print(ended.stdout[-600:] if ended.returncode == 0 else ended.stderr[-1500:])
            run = glob.glob(f"{work}/runs/{name}-*")[0]
            steps = [json.loads(line) for line in open(f"{run}/events.jsonl")]
            curves[name] = [event["loss"] for event in steps if event["type"] == "step"]
            ended = [(a["batch"], a["outcome"]) for a in json.load(open(f"{run}/run.json"))["attempts"]]
            print(name, ended)
        apart = max(abs(a - b) for a, b in zip(curves["whole"], curves["small"]))
        is_same = len(curves["small"]) == 12 == len(curves["whole"]) and apart < 1e-4
        print(f"{'ok' if is_same else 'FAILED'}: adapter through an out-of-memory: losses {curves['whole'][0]:.3f} to "
              f"{curves['whole'][-1]:.3f}, at most {apart:.1e} apart")


def ours(binaries, *args):
    ended = subprocess.run([f"{binaries}/pipe-trainer-bench", "steps", "--steps", "8", *args], env=ENV, capture_output=True, text=True)
    print("pipe", " ".join(args), "->", (ended.stdout.strip() or ended.stderr.strip()[-300:])[:700], flush=True)


def theirs():
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = LlamaForCausalLM._from_config(LlamaConfig(**LLAMA_1B), attn_implementation="sdpa", dtype=torch.bfloat16).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, 128256, (8, 1024), device="cuda")
    times = []
    for _ in range(12):
        torch.cuda.synchronize()
        began = time.perf_counter()
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - began))
    print(f"transformers llama-1b 8 x 1024 bf16: {sorted(times[4:])[4]:.1f} ms, {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("parts", nargs="*", default=["oom", "steps"])
    given = parser.parse_args()
    if "oom" in given.parts:
        out_of_memory(os.path.abspath(given.bin))
    if "steps" in given.parts:
        ours(given.bin, "--model", "llama-1b", "--batch", "8", "--source", "1024", "--precision", "bf16")
        theirs()
        torch.cuda.empty_cache()
        large = ["--model", "llama-8b", "--lora", "16", "--batch", "4", "--source", "2048", "--precision", "bf16"]
        ours(given.bin, *large, "--checkpointing")
        ours(given.bin, *large)


main()
