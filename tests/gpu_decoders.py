#!/usr/bin/env python3
"""Decoder models on a card: an adapter of a model of 0.3 billion parameters through a real out-of-memory with the curve of the
undisturbed run, and the times of steps beside transformers in the same process order; the same out-of-memory with 8 billion random
parameters on 24 GB (LoRA) and on 12 GB (nf4); and those trained on conversations of uneven length, beside PEFT with Liger on rows
that are padded to the longest. The card is made small with memory.limit.

usage: gpu_decoders.py --bin FOLDER-OF-THE-BINARIES [oom] [steps] [large] [uneven]
Needs a python3 with torch, transformers and safetensors, and a CUDA card; uneven also peft and liger_kernel; large and uneven
20 GB of disk."""
import argparse
import glob
import json
import os
import random
import subprocess
import tempfile
import threading
import time

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
CHAT = os.path.join(HERE, "fixtures", "chat-llama")
ENV = {**os.environ, "LD_LIBRARY_PATH": os.path.join(torch.__path__[0], "lib")}
SIZES = dict(hidden_size=1024, intermediate_size=4096, num_hidden_layers=16, num_attention_heads=16, num_key_value_heads=4,
             max_position_embeddings=2048, vocab_size=420, bos_token_id=0, eos_token_id=2, pad_token_id=3)
LLAMA_1B = dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
                vocab_size=128256, max_position_embeddings=8192, tie_word_embeddings=True)
LLAMA_8B = dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
                vocab_size=128256, max_position_embeddings=8192, tie_word_embeddings=False, bos_token_id=0, eos_token_id=2, pad_token_id=3)


def model_folder(folder, sizes, device="cpu"):
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaForCausalLM._from_config(LlamaConfig(**sizes), dtype=torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="2GB")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        open(os.path.join(folder, name), "wb").write(open(os.path.join(CHAT, name), "rb").read())


def talks(path, together=12):
    """The conversations of the fixture, several of them in one."""
    rows = [json.loads(line)["messages"] for line in open(os.path.join(CHAT, "train.jsonl"))]
    with open(path, "w") as out:
        for first in range(256):
            messages = [m for number in range(together) for m in rows[(first * 7 + number) % len(rows)] if m["role"] != "system"]
            out.write(json.dumps({"messages": messages}) + "\n")


def run_of(binaries, work, name, *more):
    """Its steps, and how each attempt ended."""
    # Each name has a queue for the card of its own: two of them may run at a time.
    env = {**ENV, "PIPE_QUEUE": os.path.join(work, f"queue-{name}")}
    ended = subprocess.run([f"{binaries}/pipe", "run", "chat.yaml", "--ignore-ledger", "--name", name, *more], cwd=work, env=env, capture_output=True, text=True)
    if ended.returncode != 0:
        raise SystemExit(f"FAILED {name}: {ended.stderr[-1500:]}")
    run = glob.glob(f"{work}/runs/{name}-*")[0]
    steps = [event for event in map(json.loads, open(f"{run}/events.jsonl")) if event["type"] == "step"]
    return steps, [(attempt["batch"], attempt["outcome"]) for attempt in json.load(open(f"{run}/run.json"))["attempts"]]


def large(binaries, work):
    """8 billion parameters on a small card: the first attempt runs out of memory, and the curve is that of the run that had room."""
    talks(os.path.join(work, "talks.jsonl"), together=24)
    open(os.path.join(work, "chat.yaml"), "w").write(
        "version: 1\nname: chat\nmodel: {from: model}\nadapter: {rank: 16, dropout: 0.05}\n"
        "data: {train: talks.jsonl, fields: {messages: messages}, max_length: 2048}\n"
        "train: {steps: 4, batch: 16, effective_batch: 16, precision: bf16, checkpointing: true, split: fixed, optimizer: {lr: 1.0e-3}}\n"
        "memory: {limit: 24g}\nsave: {every: 2}\ncontainer: {gpus: 1}\nengine: process\n")

    def compare(name, limit, *more):
        whole, ended_whole = run_of(binaries, work, f"{name}-whole", *more, "--set", "memory.limit=60g")
        small, ended = run_of(binaries, work, f"{name}-small", *more, "--set", f"memory.limit={limit}")
        apart = max(abs(a["loss"] - b["loss"]) / a["loss"] for a, b in zip(whole, small))
        forced = len(ended_whole) == 1 and len(ended) > 1
        print(f"{'ok' if forced and len(small) == len(whole) == 4 and apart < 1e-3 else 'FAILED'}: 8B {name} with limit {limit}: {ended},"
              f" losses {whole[0]['loss']:.4f} to {whole[-1]['loss']:.4f}, at most {apart:.1e} of it from the run with room", flush=True)

    both = [threading.Thread(target=compare, args=words) for words in (("lora", "24g"), ("nf4", "12g", "--set", "model.quantize=nf4"))]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()


UNEVEN_ROWS, UNEVEN_BATCH = 320, 16


def uneven_talks(path):
    """Conversations of 300 tokens in the middle of many, and of 2048 at most."""
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(CHAT)
    texts = [message["content"] for line in open(os.path.join(CHAT, "train.jsonl")) for message in json.loads(line)["messages"]]
    generator = random.Random(5)
    rows = []
    while len(rows) < UNEVEN_ROWS:
        wanted = min(2000, generator.lognormvariate(5.3, 0.9))
        messages, ids = [], []
        while len(ids) < wanted:
            messages += [{"role": role, "content": generator.choice(texts)} for role in ("user", "assistant")]
            ids = tokenizer(tokenizer.apply_chat_template(messages, tokenize=False), add_special_tokens=False).input_ids
        if len(ids) <= 2048:
            rows.append((messages, ids))
    with open(path, "w") as out:
        out.writelines(json.dumps({"messages": messages}) + "\n" for messages, _ in rows)
    return [ids for _, ids in rows]


def uneven(binaries, work):
    """Tokens of the conversations a second, with LoRA 16 on all linear layers of 8 billion parameters, without checkpointing."""
    rows = uneven_talks(os.path.join(work, "talks.jsonl"))
    mean = sum(map(len, rows)) / len(rows)
    print(f"{len(rows)} conversations of {mean:.0f} tokens, {max(map(len, rows))} at most; {UNEVEN_BATCH} a step", flush=True)
    open(os.path.join(work, "chat.yaml"), "w").write(
        "version: 1\nname: chat\nmodel: {from: model}\nadapter: {rank: 16, dropout: 0.05}\n"
        "data: {train: talks.jsonl, fields: {messages: messages}, max_length: 2048, loss_on: all}\n"
        f"train: {{epochs: 1, batch: {UNEVEN_BATCH}, effective_batch: {UNEVEN_BATCH}, precision: bf16, checkpointing: false, optimizer: {{lr: 1.0e-4}}}}\n"
        "save: {every: 1000}\ncontainer: {gpus: 1}\nengine: process\n")
    steps, ended = run_of(binaries, work, "uneven")
    later = steps[4:]
    ours = sum(step["tokens"] for step in later) / sum(step["ms"] for step in later) * 1000
    print(f"pipe: {ended}, {ours:,.0f} tokens/s, mean step {sum(step['ms'] for step in later) / len(later):.0f} ms", flush=True)
    theirs = uneven_of_peft(os.path.join(work, "model"), rows)
    print(f"{'ok' if ours > 2 * theirs else 'FAILED'}: conversations of uneven length: {ours / theirs:.2f} times the tokens/s", flush=True)


def uneven_of_peft(model, rows):
    from liger_kernel.transformers import apply_liger_kernel_to_llama
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM
    apply_liger_kernel_to_llama()
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16, device_map={"": 0}, attn_implementation="sdpa")
    model = get_peft_model(base, LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, target_modules="all-linear", task_type="CAUSAL_LM")).train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)
    order = random.Random(1).sample(range(len(rows)), len(rows))

    def trained(together, first):
        """Tokens a second with so many rows padded to the longest of them, from step `first` on."""
        tokens, seconds = 0, 0.0
        for number in range(first * UNEVEN_BATCH, len(order), UNEVEN_BATCH):
            batch = [torch.tensor(rows[at], device="cuda") for at in order[number:number + UNEVEN_BATCH]]
            wanted = sum(len(row) - 1 for row in batch)
            torch.cuda.synchronize()
            began = time.perf_counter()
            for start in range(0, len(batch), together):
                ids = torch.nn.utils.rnn.pad_sequence(batch[start:start + together], batch_first=True, padding_value=-1)
                mask = (ids >= 0).long()
                labels = ids.masked_fill(ids < 0, -100)
                model(input_ids=ids.clamp_min(0), attention_mask=mask, labels=labels, use_cache=False, num_items_in_batch=wanted).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.synchronize()
            if number >= (first + 2) * UNEVEN_BATCH:
                seconds += time.perf_counter() - began
                tokens += wanted
        return tokens / seconds

    best = 0.0
    for together, first in ((8, 0), (4, 6), (2, 12)):
        try:
            speed = trained(together, first)
        except torch.OutOfMemoryError:
            speed = 0.0
        print(f"transformers, PEFT, Liger, {together} rows padded to the longest: {speed:,.0f} tokens/s,"
              f" {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB", flush=True)
        torch.cuda.reset_peak_memory_stats()
        best = max(best, speed)
    return best


def out_of_memory(binaries):
    with tempfile.TemporaryDirectory() as work:
        model_folder(os.path.join(work, "model"), SIZES)
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
    parser.add_argument("--work", help="a folder for the large model, which stays there")
    parser.add_argument("parts", nargs="*", default=["oom", "steps"])
    given = parser.parse_args()
    if "oom" in given.parts:
        out_of_memory(os.path.abspath(given.bin))
    if "steps" in given.parts:
        ours(given.bin, "--model", "llama-1b", "--batch", "8", "--source", "1024", "--precision", "bf16")
        theirs()
        torch.cuda.empty_cache()
        shape = ["--model", "llama-8b", "--lora", "16", "--batch", "4", "--source", "2048", "--precision", "bf16"]
        ours(given.bin, *shape, "--checkpointing")
        ours(given.bin, *shape)
    if {"large", "uneven"} & set(given.parts):
        with tempfile.TemporaryDirectory() as work:
            work = os.path.abspath(given.work or work)
            if not os.path.exists(os.path.join(work, "model")):
                model_folder(os.path.join(work, "model"), LLAMA_8B, "cuda")
                torch.cuda.empty_cache()
            for name, part in (("large", large), ("uneven", uneven)):
                if name in given.parts:
                    part(os.path.abspath(given.bin), work)


main()
