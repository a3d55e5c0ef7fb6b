#!/usr/bin/env python3
"""Writes docs/pipeline.md, the pipeline reference, from pipelines/schema.json.

    docs/generate_reference.py           write the page
    docs/generate_reference.py --check   write nothing; exit 1 when the page is stale

The meaning of a key is its `description` in the schema, which is the doc comment of its field in pipe-spec; a key
without one is an error.
"""

import argparse
import difflib
import json
import re
import sys
import textwrap
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "pipeline.md"
SCHEMA = DOCS.parent / "pipelines" / "schema.json"

INTRODUCTION = """\
# What can stand in a pipeline file?

<!-- Generated from pipelines/schema.json by docs/generate_reference.py. Do not edit this page. -->

A pipeline is a YAML file. `version`, `name`, `model` and `data.train` are required (or a `command`, or `steps`); every
other key has a default. The [README](../README.md#the-smallest-useful-pipeline) has the smallest useful file,
`pipelines/` larger ones, and `pipe init` writes one with comments for your data.

- Unknown keys are errors. `pipe check` reports all problems of a file at once: line, key, the value found, the values
  allowed and the nearest spelling.
- `${VAR}`, not in `container.image`, is replaced by the environment variable `VAR`, or by its line in `.env` in the
  working directory.
  `pipe` writes only the name of a variable to disk, never its value.
- Relative paths are relative to the working directory. A size is a number with a unit: `512m`, `24g`, `7.5g`.
- `pipe run --set train.batch=32` replaces one value for one run.

`pipe schema` prints the JSON schema that this page comes from (`pipelines/schema.json`). Editors complete and check
keys with it. Each line below has the key, its values, its default and its meaning.
"""

# What a section is for, in one or two sentences, with a link to the page that explains it.
SECTIONS = {
    "model": "Which model is trained: [models.md](models.md).",
    "adapter": "Small matrices that are trained beside frozen weights: [chat.md](chat.md#adapters).",
    "data": "What it is trained on: [data.md](data.md); from the Hugging Face hub: [hub.md](hub.md).",
    "train": "The training itself. A retry after out of memory changes `batch` and `accum`, never `effective_batch`: "
    "[out-of-memory.md](out-of-memory.md).",
    "train.optimizer": "",
    "train.schedule": "",
    "train.early_stop": "See [best-model.md](best-model.md#early-stopping).",
    "train.preference": "See [chat.md](chat.md#preferences).",
    "memory": "How GPU memory is used: [memory.md](memory.md).",
    "memory.allocator": "Settings of PyTorch's caching allocator on the GPU, named as in `PYTORCH_CUDA_ALLOC_CONF`.",
    "on_oom": "What happens when memory runs out: [out-of-memory.md](out-of-memory.md). Entries of `then` are "
    "`checkpointing`, `precision=bf16` (or another precision), `optimizer=adafactor` (or `adamw8bit`), `max_source=256`, "
    "`max_target=128` and `max_length=256`.",
    "evaluate": "Evaluation on `data.eval`, and generated texts.",
    "save": "Checkpoints and the exported model: [best-model.md](best-model.md).",
    "container": "What the job gets: [images.md](images.md), [security.md](security.md).",
    "container.mounts": "Each entry is one more folder or file that the job can read.",
    "slurm": "What the jobs of a run ask the cluster for, with the engine `slurm`: [clusters.md](clusters.md).",
    "kubernetes": "Where the pods of a run are and what they ask for, with the engine `kubernetes`: "
    "[kubernetes.md](kubernetes.md).",
    "kubernetes.tolerations": "Each entry is a taint, with the keys of Kubernetes.",
    "notify": "A list of receivers of messages: [tracking.md](tracking.md#messages).",
    "track": "Experiment trackers: [tracking.md](tracking.md).",
    "steps": "Several trainings and commands, each with the sections of this page except `version`, `name` and "
    "`steps`, and with these: [steps.md](steps.md).",
    "checkpoints": "What a `command` can resume from: [commands.md](commands.md#checkpoints).",
}


class Stale(Exception):
    """The schema and this script do not fit together."""


class Reference:
    def __init__(self, schema):
        self.schema = schema
        self.sections = dict(SECTIONS)
        self.lines = []

    def write(self):
        self.lines.append(INTRODUCTION)
        objects = self.keys("", self.schema, "## Top level\n")
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
        heading = f"{level} `{path}`\n" + (f"{wrapped(about, '')}\n" if about else "")
        for inner, inner_definition in self.keys(path, definition, heading):
            self.section(inner, inner_definition)

    def keys(self, path, definition, heading):
        """Writes the keys of an object, and returns those that are objects themselves."""
        required = definition.get("required", [])
        objects, entries = [], []
        for name, value in definition["properties"].items():
            key = f"{path}.{name}" if path else name
            inner = self.object_of(value) if key != "steps" else self.of_steps()
            meaning = self.meaning(key, value, bool(inner))
            if inner:
                objects.append((key, inner))
                entries.append(wrapped(f"- [`{name}`](#{anchor(key)})" + (f": {meaning}" if meaning else "")))
                continue
            default = "; required" if name in required else self.default(value)
            entries.append(wrapped(f"- `{name}` ({self.values(value)}{default}): {meaning}"))
        self.lines.append(heading)
        self.lines.extend(entries)
        self.lines.append("")
        return objects

    def of_steps(self):
        """What a step has besides the sections of a pipeline."""
        properties, top = self.schema["$defs"]["Step"]["properties"], self.schema["properties"]
        return {"properties": {name: value for name, value in properties.items() if name not in top}}

    def meaning(self, key, value, is_section):
        described = value.get("description")
        if not described and not is_section:
            described = self.followed(value).get("description") if "$ref" in value else None
            if not described:
                raise Stale(f"{key} has no description: write a doc comment for its field in pipe-spec")
        return " ".join((described or "").split())

    def default(self, value):
        default = value.get("default")
        if default is None or default == {} or default == []:
            return ""
        return f"; default `{plain(default)}`"

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
                return "boolean"
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


def wrapped(text, indent="  "):
    """Lines of at most 120 characters; those after the first are indented. None ends within `code`."""
    whole = re.sub("`[^`]+`", lambda code: code[0].replace(" ", "\0"), text)
    lines = textwrap.fill(whole, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\0", " ")


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
    lines = [text.splitlines(True) for text in (found, wanted)]
    sys.stdout.writelines(difflib.unified_diff(*lines, "docs/pipeline.md", "generated"))
    sys.exit("docs/pipeline.md is stale; run docs/generate_reference.py")


if __name__ == "__main__":
    main()
