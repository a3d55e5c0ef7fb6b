#!/usr/bin/env python3
"""Writes rows to train and to evaluate with: sums in words, such as "three and four" and "seven"."""
import argparse
import json
import os
import random

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=2000)
parser.add_argument("--out", required=True, help="the folder to write to")
given = parser.parse_args()

chance = random.Random(1)
words = "zero one two three four five six seven eight nine".split()
folder = os.path.join(given.out, "rows")
os.makedirs(folder, exist_ok=True)
for name, count in (("train", given.rows), ("eval", given.rows // 10)):
    with open(os.path.join(folder, f"{name}.jsonl"), "w") as out:
        for _ in range(count):
            one, other = chance.randrange(5), chance.randrange(5)
            out.write(json.dumps(dict(source=f"{words[one]} and {words[other]}", target=words[one + other])) + "\n")
    print(f"{count} rows in {name}.jsonl")
