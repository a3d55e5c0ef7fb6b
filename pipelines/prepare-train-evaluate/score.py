#!/usr/bin/env python3
"""How many predictions of `pipe predict` are right."""
import argparse
import json
import os

parser = argparse.ArgumentParser()
parser.add_argument("--predictions", required=True)
parser.add_argument("--out", required=True, help="the folder to write to")
given = parser.parse_args()

with open(given.predictions) as file:
    rows = [json.loads(line) for line in file]
right = sum(row["text"].strip() == row["expected"] for row in rows)
score = dict(rows=len(rows), right=right, accuracy=right / max(1, len(rows)))
with open(os.path.join(given.out, "score.json"), "w") as out:
    json.dump(score, out)
print(f"{right} of {len(rows)} sums are right")
