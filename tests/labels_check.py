#!/usr/bin/env python3
"""Compares what `pipe predict` says about texts with several labels, or about words, with what transformers says.
usage: labels_check.py MODEL-FOLDER rows.jsonl predictions.jsonl"""
import json
import sys

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer

folder = sys.argv[1]
rows, predictions = ([json.loads(line) for line in open(name)] for name in sys.argv[2:4])
assert len(rows) == len(predictions) > 0
config, tokenizer = AutoConfig.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
names = [config.id2label[number] for number in range(config.num_labels)]
of_tokens = "ForTokenClassification" in config.architectures[0]
kind = AutoModelForTokenClassification if of_tokens else AutoModelForSequenceClassification
model = kind.from_pretrained(folder, dtype=torch.float32).eval()
for row, said in zip(rows, predictions):
    with torch.no_grad():
        if of_tokens:
            encoded = tokenizer(row["tokens"], is_split_into_words=True, return_tensors="pt")
            best = model(**encoded).logits[0].softmax(-1).max(-1)
            words = encoded.word_ids()
            first = {word: at for at, word in reversed(list(enumerate(words))) if word is not None}
            tags = [names[best.indices[first[word]]] for word in range(len(row["tokens"]))]
            assert tags == said["tags"], (tags, said)
            scores = [best.values[first[word]].item() for word in range(len(tags))]
            starts = [sum(len(word) + 1 for word in row["tokens"][:at]) for at in range(len(tags))]
            for span in said["spans"]:
                inside = [score for score, start in zip(scores, starts) if span["start"] <= start < span["end"]]
                assert abs(span["score"] - sum(inside) / len(inside)) < 1e-4, (span, inside)
        else:
            assert config.problem_type == "multi_label_classification"
            scores = torch.sigmoid(model(**tokenizer(row["message"], return_tensors="pt")).logits[0]).tolist()
            assert all(abs(said["scores"][name] - score) < 1e-4 for name, score in zip(names, scores)), (scores, said)
            assert said["labels"] == [name for name, score in zip(names, scores) if score >= config.threshold]
print(f"{len(rows)} rows agree")
