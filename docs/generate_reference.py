#!/usr/bin/env python3
"""Writes docs/pipeline.md, the pipeline reference, from pipelines/schema.json.

    docs/generate_reference.py           write the page
    docs/generate_reference.py --check   write nothing; exit 1 when the page is stale

The meaning of a key is its `description` in the schema, which is the doc comment of its field in pipe-spec; a key without one is
an error.
"""

import argparse
import difflib
import json
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "pipeline.md"
SCHEMA = DOCS.parent / "pipelines" / "schema.json"

INTRODUCTION = """\
# What can stand in a pipeline file?

<!-- Generated from pipelines/schema.json by docs/generate_reference.py. Do not edit this page. -->

A pipeline is a YAML file. `version`, `name`, `model` and `data.train` are required (or a `command`, or `steps`); every other key has a default. The smallest
useful file is in the [README](../README.md#the-smallest-useful-pipeline), and `pipe init` writes a commented one for your data. This one uses most sections:

```yaml
version: 1
name: recipes
model:
  arch: t5
  config: {vocab_size: 256, d_model: 128, d_kv: 32, d_ff: 256, num_layers: 2, num_heads: 4}   # keys as in config.json
  # from: google/flan-t5-xl      # instead of config: a folder in Hugging Face layout, or a hub id
data:
  train: data/train.jsonl        # or a list of files, or a folder
  eval: data/eval.jsonl
  fields: {source: ingredients, target: directions}
  # tokenizer: tokenizer.json    # or spiece.model, vocab.txt, ...; default: in the folder of model.from, else beside the data
train:
  epochs: 5                      # or steps:
  batch: 64                      # samples in one forward and backward pass; or auto: the largest that fits
  effective_batch: 128           # samples in a step; or accum: batches in a step
  precision: fp32                # fp32 | tf32 | bf16 | bf16-mixed | fp16-mixed
  checkpointing: false           # true: compute blocks again in the backward pass instead of keeping their activations
  optimizer: {kind: adamw, lr: 1.0e-3, weight_decay: 0.01}   # or kind: adafactor
  schedule: {kind: cosine, warmup: 50}
memory:
  limit: 0.95                    # share of the card, or a size such as 12g; default: all of it
  allocator: {expandable_segments: true}
  worst_first: true              # the longest samples first, in a step whose update is discarded
on_oom:
  retries: 6
  reduce: fit                    # the largest batch that fits, from measurements of smaller ones; or halve, or a list: [48, 32, 16]
  min_batch: 1
  wait: 600                      # seconds to wait for another process to leave the card
  then: []                       # changes to the training result that are allowed when no batch fits, in order
evaluate: {every: 500, generate: 3, beams: 1}   # or every: epoch; generate: sample texts to print
save: {every: 500, keep: 3}
track: {tensorboard: true, mlflow: "${MLFLOW_TRACKING_URI}", wandb: recipes}
notify: [{discord: "${DISCORD_WEBHOOK}", on: [oom, finished, failed]}]
container:
  gpus: auto                     # 0 | a number | all | [ids] | auto: a GPU where there is one
  memory: 24g
  cpus: 8
```

- Unknown keys are errors. `pipe check` reports all problems of a file at once: line, key, the value found, the values allowed and the nearest
  spelling.
- A key whose feature is not built yet is refused with "not available yet". `pipe` never ignores a key. Today this is
  the engine `kubernetes`.
- `${VAR}` in a text is replaced by the environment variable `VAR`, or by its line in a `.env` file in the working directory. `pipe`
  writes only the name of a variable to disk, never its value.
- Relative paths are relative to the working directory.
- A size is a number with a unit: `512m`, `24g`, `7.5g`.
- `pipe run --set train.batch=32` replaces one value for one run.

`pipe schema` prints the JSON schema that this page comes from (`pipelines/schema.json`). Editors complete and check keys with it.
"""

# What a section is for, in one or two sentences, with a link to the page that explains it.
SECTIONS = {
    "model": "Which model is trained. [models.md](models.md) says which files of a model are read.",
    "data": "What it is trained on. [data.md](data.md) describes file formats and columns, [hub.md](hub.md) data from the Hugging Face hub.",
    "train": "The training itself. A retry after out of memory changes `batch` and `accum`, never `effective_batch`: [out-of-memory.md](out-of-memory.md).",
    "train.optimizer": "",
    "train.schedule": "",
    "train.early_stop": "Ends a training that no longer improves, as a finished one: [best-model.md](best-model.md#early-stopping).",
    "memory": "How GPU memory is used. [memory.md](memory.md) shows how to find out what fits.",
    "memory.allocator": "Settings of PyTorch's caching allocator on the GPU, with the names of `PYTORCH_CUDA_ALLOC_CONF`.",
    "on_oom": "What happens when memory runs out: [out-of-memory.md](out-of-memory.md). Entries of `then` are `checkpointing`, `precision=bf16` (or another "
    "precision), `optimizer=adafactor`, `max_source=256`, `max_target=128` and `max_length=256`.",
    "evaluate": "Evaluation on `data.eval`, and generated texts.",
    "save": "Checkpoints and the exported model. [best-model.md](best-model.md) describes `best` and the metrics.",
    "container": "What the job gets. [images.md](images.md) describes the image and the container, [security.md](security.md) what the job cannot do.",
    "container.mounts": "Each entry is one more folder or file that the job can read.",
    "slurm": "What the jobs of a run ask the cluster for, with `engine: slurm` or `--engine slurm`: [clusters.md](clusters.md).",
    "notify": "A list of receivers of messages: [tracking.md](tracking.md#messages).",
    "track": "Experiment trackers: [tracking.md](tracking.md).",
    "steps": "Several trainings and commands, each with the sections of this page except `version`, `name` and `steps`, and with these: [steps.md](steps.md).",
    "checkpoints": "What a `command` can resume from: [commands.md](commands.md#checkpoints).",
}

# Keys that the schema does not describe.
class Stale(Exception):
    """The schema and this script do not fit together."""


class Reference:
    def __init__(self, schema):
        self.schema = schema
        self.sections = dict(SECTIONS)
        self.lines = []

    def write(self):
        self.lines.append(INTRODUCTION)
        objects = self.table("", self.schema, "## Top level\n")
        for path, definition in objects:
            self.section(path, definition)
        left = [f"SECTIONS[{key!r}]" for key in self.sections]
        if left:
            raise Stale("not in the schema: " + ", ".join(left))
        return "\n".join(self.lines).rstrip() + "\n"

    def section(self, path, definition):
        if path not in self.sections:
            raise Stale(f"describe the section in SECTIONS: {path}")
        about = self.sections.pop(path)
        level = "##" if "." not in path else "###"
        heading = f"{level} `{path}`\n" + (f"{about}\n" if about else "")
        for inner, inner_definition in self.table(path, definition, heading):
            self.section(inner, inner_definition)

    def table(self, path, definition, heading):
        """Writes the keys of an object, and returns those that are objects themselves."""
        required = definition.get("required", [])
        objects, rows = [], []
        for name, value in definition["properties"].items():
            key = f"{path}.{name}" if path else name
            inner = self.object_of(value) if key != "steps" else self.of_steps()
            if inner:
                objects.append((key, inner))
            values = f"see [`{key}`](#{anchor(key)})" if inner else self.values(value)
            default = "required" if name in required else self.default(value, bool(inner))
            meaning = self.meaning(key, value, bool(inner))
            rows.append(f"| `{name}` | {values} | {default} | {meaning} |")
        self.lines.append(heading)
        self.lines.append("| key | values | default | meaning |\n|---|---|---|---|")
        self.lines.extend(rows)
        self.lines.append("")
        return objects

    def of_steps(self):
        """What a step has besides the sections of a pipeline."""
        properties = self.schema["$defs"]["Step"]["properties"]
        return {"properties": {name: value for name, value in properties.items() if name not in self.schema["properties"]}}

    def meaning(self, key, value, is_section):
        described = value.get("description")
        if not described and not is_section:
            described = self.followed(value).get("description") if "$ref" in value else None
            if not described:
                raise Stale(f"{key} has no description: write a doc comment for its field in pipe-spec")
        return cell(described or "")

    def default(self, value, is_section):
        if is_section:
            return ""
        default = value.get("default")
        if default is None or default == {} or default == []:
            return ""
        return f"`{plain(default)}`"

    def values(self, value):
        """What may stand there, in words."""
        value = self.followed(value)
        if "enum" in value:
            return " ".join(f"`{plain(word)}`" for word in value["enum"] if word is not None)
        if "const" in value:
            return f"`{plain(value['const'])}`"
        for several in ("anyOf", "oneOf"):
            if several in value:
                kinds = [self.values(one) for one in value[several] if one.get("type") != "null"]
                return " or ".join(kinds) if any(" " in kind for kind in kinds) else " ".join(kinds)
        kind = value.get("type")
        if isinstance(kind, list):
            kind = next(one for one in kind if one != "null")
        match kind:
            case "integer" | "number":
                return numbers(value, kind)
            case "boolean":
                return "`true` `false`"
            case "array":
                count = f"{value['minItems']} " if value.get("minItems") == value.get("maxItems") != None else ""
                return f"list of {count}{plural(self.values(value['items']))}"
            case "object":
                inner = value.get("additionalProperties")
                return f"map to {plural(self.values(inner))}" if isinstance(inner, dict) else "map"
            case "string":
                return "size" if value.get("format") == "byte-size" else "text"
        raise Stale(f"no words for {value}")

    def object_of(self, value):
        """The definition of an object, or of the objects in a list, with keys of its own."""
        value = self.followed(value)
        if "anyOf" in value:
            some = [one for one in value["anyOf"] if one.get("type") != "null"]
            return self.object_of(some[0]) if len(some) == 1 else None
        if value.get("type") == "array":
            return self.object_of(value["items"])
        return value if "properties" in value else None

    def followed(self, value):
        if "$ref" in value:
            return self.schema["$defs"][value["$ref"].rsplit("/", 1)[1]]
        some = [one for one in value.get("anyOf", []) if one.get("type") != "null"]
        return self.followed(some[0]) if len(some) == 1 else value


def numbers(value, kind):
    what = "integer" if kind == "integer" else "number"
    least, above, most = value.get("minimum"), value.get("exclusiveMinimum"), value.get("maximum")
    if least is not None and least == most:
        return f"`{plain(least)}`"
    bounds = []
    if above is not None:
        bounds.append(f"above {bound(above)}")
    elif least is not None:
        bounds.append(f"from {bound(least)}")
    if most is not None:
        bounds.append(f"to {bound(most)}" if above is None else f"and up to {bound(most)}")
    if value.get("exclusiveMaximum") is not None:
        bounds.append(f"to below {bound(value['exclusiveMaximum'])}")
    return " ".join([what, *bounds])


def bound(number):
    return plain(int(number) if float(number).is_integer() else number)


def plain(value):
    """A value as YAML would have it on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) > 9999:
        return f"{value:,}"
    if isinstance(value, list):
        return "[" + ", ".join(plain(one) for one in value) + "]"
    return str(value)


def plural(words):
    for one in ("integer", "number", "text"):
        words = words.replace(one, f"{one}s")
    return words


def cell(text):
    return " ".join(text.split()).replace("|", "\\|")


def anchor(key):
    """The anchor that GitHub gives to the heading of a section."""
    return "".join(letter for letter in key.lower() if letter.isalnum() or letter in "-_")


def main():
    parser = argparse.ArgumentParser(description="Write docs/pipeline.md from pipelines/schema.json.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the page is stale")
    args = parser.parse_args()
    try:
        wanted = Reference(json.loads(SCHEMA.read_text())).write()
    except Stale as problem:
        sys.exit(f"docs/generate_reference.py: {problem}")
    found = PAGE.read_text() if PAGE.exists() else ""
    if found == wanted:
        return
    if not args.check:
        PAGE.write_text(wanted)
        return
    sys.stdout.writelines(difflib.unified_diff(found.splitlines(True), wanted.splitlines(True), "docs/pipeline.md", "generated"))
    sys.exit("docs/pipeline.md is stale; run docs/generate_reference.py")


if __name__ == "__main__":
    main()
