"""Data, tokenizers and models with faults in them, read by the real programs: refused with an error message and exit code 3, or trained on;
never a crash, a hang or memory without end. A file that broke a reader is kept in tests/fuzz/corpus/read-<kind>/, and tried first."""

import gzip
import shutil

from .case import CASES, Case
from .failure import expect
from .mutation import mutate
from .world import REPOSITORY

FIXTURES = REPOSITORY / "tests/fixtures"
# Seconds for two steps of a small model.
MOST_SECONDS = 60
# Bytes, of `pipe` and of the trainer.
MOST_BYTES = 3 << 30

# What comes of it: done, refused, the loss is not finite or another end that the trainer knows, out of memory.
PIPE_CODES = (0, 3, 6, 7)
TRAINER_CODES = (0, 3, 42, 43, 44, None)

# Those of `--short`.
SHORT = ("parquet", "pickle")

TAIL = "train: {steps: 2, batch: 4}\ncontainer: {gpus: 0, cpus: 1, memory: 2g}\n"
T5 = ("version: 1\nname: input\nmodel: {arch: t5, from: model}\n"
      "data: {train: DATA, max_source: 32, max_target: 32FIELDS}\n" + TAIL)
RECIPES = ", tokenizer: model/tokenizer.json, fields: {source: ingredients, target: directions}"


def folder_of(name, folder):
    """A copy of a fixture's model."""
    shutil.copytree(FIXTURES / name, folder.path / "model", symlinks=True)
    for unneeded in ("batch.safetensors", "expect.safetensors"):
        (folder.path / "model" / unneeded).unlink(missing_ok=True)


def t5(data, fields=""):
    def make(folder):
        folder_of("t5-gated", folder)
        source = FIXTURES / ("t5-gated" if data == "train.jsonl" else "data") / data
        shutil.copy(source, folder.path / data)
        return T5.replace("DATA", data).replace("FIELDS", fields)
    return make


def t5_with_spiece(folder):
    folder.write("spiece.model", gzip.decompress((FIXTURES / "tokenizers/t5/spiece.model.gz").read_bytes()))
    shutil.copy(FIXTURES / "t5-gated/train.jsonl", folder.path / "train.jsonl")
    config = ("config: {vocab_size: 1024, d_model: 16, d_kv: 8, d_ff: 16, num_layers: 1, num_decoder_layers: 1, num_heads: 2, "
              "pad_token_id: 0, eos_token_id: 1, decoder_start_token_id: 0}")
    return T5.replace("from: model", config).replace("DATA", "train.jsonl").replace("FIELDS", "")


def deberta(folder):
    folder_of("deberta-bin", folder)
    shutil.copy(FIXTURES / "deberta-bin/train.jsonl", folder.path / "train.jsonl")
    return ("version: 1\nname: input\nmodel: {arch: deberta-v3, from: model}\n"
            "data: {train: train.jsonl, max_length: 40}\n" + TAIL)


def classifier(arch, files):
    """An encoder from scratch, with tokenizer files of its kind beside the data."""
    def make(folder):
        shutil.copy(FIXTURES / "bert/train.jsonl", folder.path / "train.jsonl")
        for name in files:
            folder.write(name, gzip.decompress((FIXTURES / f"tokenizers/{arch}/{name}.gz").read_bytes()))
        return (f"version: 1\nname: input\nmodel:\n  arch: {arch}\n  config: {{vocab_size: 60000, hidden_size: 16, "
                "num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 16, num_labels: 3}\n"
                "data: {train: train.jsonl, max_length: 40}\n" + TAIL)
    return make


def series(folder):
    folder_of("hybrid-cnn-lstm", folder)
    shutil.copy(FIXTURES / "data/series.csv", folder.path / "series.csv")
    return ("version: 1\nname: input\nmodel: {arch: hybrid-cnn-lstm, from: model}\n"
            "data: {train: series.csv, eval_share: 0.4}\n" + TAIL)


def pictures(folder):
    out = folder.path / "data"
    folder.pipe("data", "pictures", "--rows", "12", "--eval-rows", "2", "--seed", "3", "--size", "32", "--out", out,
                program=folder.world.trainer, code=0)
    tower = "hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1, num_attention_heads: 2"
    return ("version: 1\nname: input\nmodel:\n  arch: clip\n  config:\n    projection_dim: 16\n"
            f"    text_config: {{{tower}, vocab_size: 96, max_position_embeddings: 16, eos_token_id: 1, pad_token_id: 1}}\n"
            f"    vision_config: {{{tower}, image_size: 32, patch_size: 8}}\ndata: {{train: data/train.jsonl}}\n" + TAIL)


# What is made, and which of its files are mutated.
KINDS = {
    "jsonl": (t5("train.jsonl"), ["train.jsonl"]),
    "jsonl.gz": (t5("rows.jsonl.gz", RECIPES), ["rows.jsonl.gz"]),
    "jsonl.zst": (t5("rows.jsonl.zst", RECIPES), ["rows.jsonl.zst"]),
    "parquet": (t5("zstd.parquet", RECIPES), ["zstd.parquet"]),
    "parquet-plain": (t5("plain.parquet", RECIPES), ["plain.parquet"]),
    "csv": (series, ["series.csv"]),
    "safetensors": (t5("train.jsonl"), ["model/model.safetensors"]),
    "config": (t5("train.jsonl"), ["model/config.json"]),
    "tokenizer": (t5("train.jsonl"), ["model/tokenizer.json"]),
    "pickle": (deberta, ["model/pytorch_model.bin"]),
    "sentencepiece-bpe": (deberta, ["model/spm.model"]),
    "sentencepiece-unigram": (t5_with_spiece, ["spiece.model"]),
    "vocab.txt": (classifier("bert", ["vocab.txt"]), ["vocab.txt"]),
    "vocab.json": (classifier("roberta", ["vocab.json", "merges.txt"]), ["vocab.json", "merges.txt"]),
    "pictures": (pictures, ["data/**/*.png", "data/**/*.jpg", "data/train.jsonl"]),
}


def read_mutated(kind, folder, rng):
    make, patterns = KINDS[kind]
    folder.write("input.yaml", make(folder))
    files = sorted(path for pattern in patterns for path in folder.path.glob(pattern))
    expect(files, f"nothing of {patterns} is there")
    if folder.index == 0:
        # The pipeline must be right before its files are wrong.
        train(folder, files[0], is_whole=True)
        for kept in sorted((REPOSITORY / "tests/fuzz/corpus" / f"read-{kind}").glob("*")):
            train_on(folder, files[0], kept.read_bytes())
    for _ in range(3):
        path = rng.choice(files)
        train_on(folder, path, mutate(path.read_bytes(), rng))


def train_on(folder, path, content):
    """Trains with other bytes in a file. They are left there where that fails."""
    original = path.read_bytes()
    path.write_bytes(content)
    train(folder, path)
    path.write_bytes(original)
    shutil.rmtree(folder.path / "runs", ignore_errors=True)


def train(folder, path, is_whole=False):
    answer = folder.pipe("run", "input.yaml", "--engine", "process", timeout=MOST_SECONDS)
    allowed = (0,) if is_whole else PIPE_CODES
    expect(answer.code in allowed, f"{path.name}: exit code {answer.code} is not one of {allowed}\n{answer}")
    expect(answer.code == 0 or "error" in answer.stderr, f"{path.name}: a refusal without a word\n{answer}")
    expect(answer.peak_bytes < MOST_BYTES, f"{path.name}: held {answer.peak_bytes >> 20} MiB\n{answer}")
    state = folder.state() if folder.runs() else None
    for attempt in (state or {"attempts": []})["attempts"]:
        code = attempt["exit_code"]
        expect(code in TRAINER_CODES, f"{path.name}: the trainer's exit code is {code}\n{answer}")


for name in KINDS:
    CASES.append(Case(f"read-{name}", (), int(name in SHORT), lambda folder, rng, name=name: read_mutated(name, folder, rng)))
