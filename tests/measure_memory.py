#!/usr/bin/env python3
"""Measures what training steps hold on a card, over many configurations, each in a process of its own:
tests/fixtures/memory/measured.jsonl, against which `cargo test` holds the estimates of `pipe plan`.

usage: measure_memory.py --trainer target/release/pipe-trainer --out measured.jsonl [--at-once 6] [--held-out] [WORD...]
       (only configurations whose name has all of the words)
Needs a CUDA card. Everything is made from configs; nothing is fetched."""
import argparse
import concurrent.futures
import json
import subprocess
import sys
import threading
import time


def t5(d_model, d_ff, layers, heads, **more):
    base = dict(d_model=d_model, d_ff=d_ff, d_kv=64, num_layers=layers, num_heads=heads, vocab_size=32128)
    return dict(base, feed_forward_proj="gated-gelu", tie_word_embeddings=False) | more


def bert(width, layers, heads, **more):
    base = dict(hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers, num_attention_heads=heads)
    return dict(base, vocab_size=30522, num_labels=3) | more


def deberta(width, layers, heads, **more):
    base = dict(relative_attention=True, position_buckets=256, norm_rel_ebd="layer_norm", share_att_key=True,
                pos_att_type="p2c|c2p", position_biased_input=False, type_vocab_size=0, max_position_embeddings=512,
                vocab_size=128100)
    return bert(width, layers, heads, **(base | more))


def clip(patch, **more):
    text = dict(hidden_size=512, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=8, vocab_size=49408,
                max_position_embeddings=77)
    vision = dict(hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12, image_size=224,
                  patch_size=patch)
    return dict(projection_dim=512, text_config=text, vision_config=vision) | more


def hybrid(channels, **more):
    base = dict(input_features=32, sequence_length=60, conv_channels=channels, kernel_size=3, lstm_hidden=512,
                lstm_layers=2, attention_heads=4, num_classes=3)
    return base | more


def llama(width, inner, layers, heads, keys, **more):
    base = dict(hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads)
    return dict(base, num_key_value_heads=keys, max_position_embeddings=8192, tie_word_embeddings=False) | more


def vit(width, layers, heads, patch, **more):
    base = dict(hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers, num_attention_heads=heads)
    return dict(base, image_size=224, patch_size=patch, num_labels=100) | more


def resnet(hidden, depths, **more):
    return dict(embedding_size=64, hidden_sizes=hidden, depths=depths, image_size=224, num_labels=100) | more


def tabular(hidden, layers, numbers, categories):
    features = [dict(name=f"n{at}", kind="number", mean=0.0, std=1.0, missing=False) for at in range(numbers)]
    features += [dict(name=f"c{at}", kind="category", values=[str(value) for value in range(50)]) for at in range(categories)]
    return dict(hidden_size=hidden, num_layers=layers, features=features, label_mean=0.0, label_std=1.0, num_labels=3)


TOKEN_LABELS = dict(architectures=["BertForTokenClassification"], num_labels=9)

MODELS = {
    "t5-small": ("t5", t5(512, 1024, 8, 6)),
    "t5-base": ("t5", t5(768, 2048, 12, 12)),
    "t5-base-relu": ("t5", t5(768, 3072, 12, 12, feed_forward_proj="relu", tie_word_embeddings=True)),
    "t5-large": ("t5", t5(1024, 2816, 24, 16)),
    "t5-xl": ("t5", t5(2048, 5120, 24, 32)),
    "bert-base": ("bert", bert(768, 12, 12)),
    "bert-large": ("bert", bert(1024, 24, 16)),
    "roberta-base": ("roberta", bert(768, 12, 12, vocab_size=50265, max_position_embeddings=514, type_vocab_size=1)),
    "xlm-roberta-base": ("xlm-roberta", bert(768, 12, 12, vocab_size=250002, max_position_embeddings=514, type_vocab_size=1)),
    "deberta-v3-base": ("deberta-v3", deberta(768, 12, 12)),
    "deberta-v3-large": ("deberta-v3", deberta(1024, 24, 16)),
    "clip-b-32": ("clip", clip(32)),
    "clip-b-16": ("clip", clip(16)),
    "hybrid": ("hybrid-cnn-lstm", hybrid([20480, 160] * 6)),
    "hybrid-small": ("hybrid-cnn-lstm", hybrid([512, 1024], lstm_hidden=256)),
    "hybrid-batch-norm": ("hybrid-cnn-lstm", hybrid([2048, 2048], norm="batch", sequence_length=120)),
    "mu-sota": ("mu-sota", {}),
    "mu-sota-wide": ("mu-sota", dict(n_layers=12, n_blocks=8, block_dim=64, block_heads=2, cross_heads=8, ffn_dim=2048)),
}
MODELS |= {
    "bert-base-tokens": ("bert", bert(768, 12, 12, **TOKEN_LABELS)),
    "vit-base": ("vit", vit(768, 12, 12, 16)),
    "resnet-18": ("resnet", resnet([64, 128, 256, 512], [2, 2, 2, 2], layer_type="basic")),
    "resnet-50": ("resnet", resnet([256, 512, 1024, 2048], [3, 4, 6, 3])),
    "tabular": ("tabular", tabular(256, 2, 20, 10)),
    "tabular-wide": ("tabular", tabular(1024, 8, 30, 10)),
    "bert-odd-tokens": ("bert", bert(640, 9, 10, intermediate_size=2048, vocab_size=60000, **TOKEN_LABELS)),
    "vit-odd": ("vit", vit(384, 7, 6, 14, image_size=182)),
    "resnet-odd": ("resnet", resnet([96, 160, 320], [2, 3, 2], layer_type="basic", embedding_size=48, image_size=161)),
    "t5-odd": ("t5", t5(640, 1920, 9, 10, num_decoder_layers=5, vocab_size=50000, d_kv=48)),
    "t5-deep-relu": ("t5", t5(384, 1536, 20, 6, feed_forward_proj="relu", tie_word_embeddings=True)),
    "bert-odd": ("bert", bert(640, 9, 10, intermediate_size=2048, vocab_size=60000)),
    "roberta-large": ("roberta", bert(1024, 24, 16, vocab_size=50265, max_position_embeddings=514, type_vocab_size=1)),
    "deberta-odd": ("deberta-v3", deberta(512, 9, 8, vocab_size=40000)),
    "clip-l-14": ("clip", dict(
        projection_dim=768,
        text_config=dict(hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12),
        vision_config=dict(hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16,
                           image_size=224, patch_size=14))),
    "hybrid-odd": ("hybrid-cnn-lstm", hybrid([4096, 256, 4096], lstm_hidden=384, lstm_layers=1, sequence_length=90)),
    "mu-sota-odd": ("mu-sota", dict(n_layers=16, n_blocks=12, block_dim=16, block_heads=2, cross_heads=6, ffn_dim=4096)),
}
MODELS |= {
    "llama-1b": ("llama", llama(2048, 8192, 16, 32, 8, vocab_size=128256, tie_word_embeddings=True)),
    "llama-8b": ("llama", llama(4096, 14336, 32, 32, 8, vocab_size=128256)),
    "tinyllama": ("llama", llama(2048, 5632, 22, 32, 4)),
    "smollm2-135m": ("llama", llama(576, 1536, 30, 9, 3, vocab_size=49152, tie_word_embeddings=True)),
    "qwen2-0.5b": ("qwen2", llama(896, 4864, 24, 14, 2, tie_word_embeddings=True)),
    "qwen3-0.6b": ("qwen3", llama(1024, 3072, 28, 16, 8, head_dim=128, tie_word_embeddings=True)),
    "mistral-window": ("mistral", llama(1024, 3584, 12, 16, 4, sliding_window=256)),
    # Of these nothing was known when the estimates were written.
    "llama-odd": ("llama", llama(768, 2000, 7, 12, 4, vocab_size=50001)),
    "qwen3-odd": ("qwen3", llama(640, 2560, 11, 10, 5, head_dim=96, vocab_size=90000)),
    "llama-3b": ("llama", llama(3072, 8192, 28, 24, 8, vocab_size=128256, tie_word_embeddings=True)),
    "t5-narrow": ("t5", t5(512, 2048, 6, 8, feed_forward_proj="relu", tie_word_embeddings=True)),
    "t5-wide": ("t5", t5(1280, 3584, 10, 20, num_decoder_layers=6)),
    "bert-small": ("bert", bert(512, 4, 8)),
    "xlm-roberta-large": ("xlm-roberta", bert(1024, 24, 16, vocab_size=250002, max_position_embeddings=514, type_vocab_size=1)),
    "mu-sota-20": ("mu-sota", dict(n_layers=20)),
}
MIXED = ["fp32", "bf16", "bf16-mixed", "fp16-mixed"]


def of(model, shapes, precisions=("bf16",), checkpointing=(False, True), **more):
    """Every combination; a shape is (batch, source, target)."""
    for batch, source, target in shapes:
        for precision in precisions:
            for again in checkpointing:
                yield dict(model=model, batch=batch, source=source, target=target, precision=precision,
                           checkpointing=again) | more


CONFIGURATIONS = [
    *of("t5-small", [(16, 512, 128)], MIXED), *of("t5-small", [(64, 128, 128), (4, 1024, 256)]),
    *of("t5-base", [(32, 512, 128), (16, 512, 128)]), *of("t5-base", [(8, 256, 256)], MIXED),
    *of("t5-base", [(16, 512, 128)], checkpointing=[False], accum=2),
    *of("t5-base", [(16, 512, 128)], checkpointing=[False], optimizer="adafactor"),
    *of("t5-base", [(16, 512, 128)], checkpointing=[False], padded=False),
    *of("t5-base-relu", [(16, 384, 96)], ["tf32", "bf16"]),
    *of("t5-large", [(8, 512, 128)], ["bf16", "bf16-mixed"]), *of("t5-large", [(2, 384, 64)]),
    *of("t5-xl", [(8, 512, 128), (1, 512, 256)]), *of("t5-xl", [(8, 512, 256)], checkpointing=[True], accum=2),
    *of("t5-xl", [(4, 512, 128)], ["bf16"], [True], optimizer="adafactor"),
    # Odd lengths, long sources, and Adafactor over several parts.
    *of("t5-base", [(32, 509, 125)]), *of("t5-xl", [(8, 509, 125)]), *of("t5-base", [(2, 2039, 65)], ["bf16", "fp16-mixed"]),
    *of("t5-small", [(10, 900, 40)], ["fp32", "fp16-mixed"]),
    *of("t5-base-relu", [(21, 333, 77)], accum=3, optimizer="adafactor"), *of("bert-large", [(16, 381, 0)], ["bf16-mixed"]),
    *of("bert-base", [(32, 128, 0)], [*MIXED, "tf32"]), *of("bert-base", [(8, 512, 0), (64, 256, 0)], ["fp32", "bf16"]),
    *of("bert-base", [(32, 128, 0)], ["bf16-mixed"], padded=False), *of("bert-base", [(32, 128, 0)], ["bf16-mixed"], accum=3),
    *of("bert-large", [(24, 480, 0)], ["tf32"]), *of("bert-large", [(16, 384, 0)], MIXED, [False]),
    *of("bert-large", [(4, 96, 0)], ["fp16-mixed"]),
    *of("roberta-base", [(16, 256, 0)], ["fp32", "bf16-mixed"]), *of("xlm-roberta-base", [(16, 256, 0)], ["fp32", "bf16"]),
    *of("xlm-roberta-base", [(16, 256, 0)], ["bf16"], [False], optimizer="adafactor"),
    *of("deberta-v3-base", [(16, 256, 0)], MIXED), *of("deberta-v3-base", [(4, 512, 0), (32, 128, 0)], ["fp32", "bf16"]),
    *of("deberta-v3-large", [(8, 384, 0)], ["fp32", "bf16-mixed"]),
    *of("clip-b-32", [(128, 77, 0)], MIXED), *of("clip-b-32", [(32, 77, 0)], ["fp32", "fp16-mixed"], accum=4),
    *of("clip-b-16", [(64, 77, 0)], ["fp16-mixed", "bf16"]), *of("clip-b-16", [(16, 77, 0)], ["fp32"], accum=8),
    *of("hybrid", [(128, 0, 0)], MIXED), *of("hybrid", [(64, 0, 0)], ["bf16-mixed"], accum=4),
    *of("hybrid-small", [(256, 0, 0), (1024, 0, 0)], ["fp32", "bf16-mixed"]),
    *of("hybrid-batch-norm", [(64, 0, 0)], ["fp32", "bf16"]),
    *of("mu-sota", [(32, 512, 0)], MIXED), *of("mu-sota", [(4, 256, 0)], ["fp32", "fp16-mixed"]),
    *of("mu-sota", [(8, 512, 0)], ["fp16-mixed"], [False], accum=4), *of("mu-sota-wide", [(16, 512, 0)], ["fp32", "bf16-mixed"]),
    *of("bert-base-tokens", [(32, 256, 0)], ["fp32", "bf16-mixed"]), *of("bert-base-tokens", [(8, 512, 0)], accum=2),
    *of("vit-base", [(64, 0, 0)], MIXED), *of("vit-base", [(16, 0, 0)], ["bf16-mixed"], accum=4),
    *of("resnet-18", [(128, 0, 0)], MIXED, [False]), *of("resnet-18", [(32, 0, 0)], ["bf16"], [False], accum=2),
    *of("resnet-50", [(64, 0, 0)], MIXED, [False]), *of("resnet-50", [(16, 0, 0)], ["fp32", "bf16-mixed"], [False], accum=4),
    *of("llama-1b", [(8, 1024, 0), (4, 2048, 0)]), *of("llama-1b", [(2, 512, 0)], MIXED),
    *of("llama-1b", [(2, 512, 0)], ["bf16", "bf16-mixed"], accum=2), *of("llama-1b", [(3, 777, 0)], optimizer="adafactor"),
    *of("tinyllama", [(8, 512, 0)], ["bf16", "bf16-mixed"]), *of("smollm2-135m", [(16, 512, 0), (5, 333, 0)]),
    *of("smollm2-135m", [(16, 512, 0)], ["fp32", "fp16-mixed"]), *of("qwen2-0.5b", [(8, 512, 0)], ["bf16", "bf16-mixed"]),
    *of("qwen3-0.6b", [(8, 512, 0)], ["bf16", "fp32"]), *of("mistral-window", [(8, 512, 0)], ["bf16", "fp32"]),
    *of("llama-8b", [(4, 2048, 0)], lora=16), *of("llama-8b", [(1, 1024, 0)], lora=16),
    *of("llama-1b", [(8, 1024, 0), (3, 333, 0)], ["bf16", "bf16-mixed"], lora=16), *of("llama-1b", [(4, 512, 0)], ["fp32"], lora=64),
    *of("llama-1b", [(4, 512, 0)], lora=16, accum=2), *of("qwen2-0.5b", [(8, 512, 0)], ["bf16", "fp32"], lora=8),
    *of("qwen3-0.6b", [(8, 512, 0)], lora=32), *of("mistral-window", [(8, 512, 0)], lora=8),
    # Adapters of the others.
    *of("t5-base", [(16, 512, 128)], ["bf16", "bf16-mixed"], lora=16), *of("t5-base-relu", [(8, 384, 96)], ["bf16", "fp32"], lora=8),
    *of("t5-xl", [(4, 512, 128)], lora=16), *of("t5-xl", [(4, 512, 128)], lora=16, quantize="nf4"),
    *of("t5-xl", [(4, 512, 128)], lora=16, quantize="int8"), *of("t5-base", [(8, 512, 128)], lora=16, accum=2),
    *of("bert-base", [(32, 256, 0)], ["bf16", "bf16-mixed", "fp32"], lora=16), *of("bert-large", [(16, 384, 0)], lora=16),
    *of("bert-large", [(16, 384, 0)], lora=16, quantize="nf4"), *of("bert-large", [(16, 384, 0)], lora=16, quantize="int8"),
    *of("bert-base-tokens", [(16, 256, 0)], ["bf16"], lora=16), *of("bert-base", [(32, 128, 0)], ["bf16-mixed"], lora=16, accum=2),
    *of("roberta-base", [(16, 256, 0)], ["bf16", "fp32"], lora=16), *of("xlm-roberta-base", [(16, 256, 0)], lora=16),
    *of("xlm-roberta-base", [(16, 256, 0)], lora=16, quantize="nf4"),
    *of("deberta-v3-base", [(16, 256, 0)], ["bf16", "fp32", "bf16-mixed"], lora=16), *of("deberta-v3-large", [(8, 384, 0)], lora=16),
    *of("deberta-v3-large", [(8, 384, 0)], lora=16, quantize="nf4"),
    *of("clip-b-32", [(128, 77, 0)], ["bf16", "fp16-mixed", "fp32"], lora=16), *of("clip-b-16", [(64, 77, 0)], lora=16),
    *of("clip-b-16", [(64, 77, 0)], lora=16, quantize="nf4"), *of("clip-b-32", [(32, 77, 0)], lora=16, accum=4),
    *of("t5-base", [(16, 512, 128)], lora=16, lora_dropout=0.1), *of("bert-base", [(32, 256, 0)], lora=16, lora_dropout=0.1),
    *of("deberta-v3-base", [(16, 256, 0)], lora=16, lora_dropout=0.1), *of("clip-b-32", [(128, 77, 0)], lora=16, lora_dropout=0.1),
    *of("llama-1b", [(4, 512, 0)], lora=16, lora_dropout=0.1),
    *of("vit-base", [(64, 0, 0)], ["bf16", "bf16-mixed", "fp32"], lora=16), *of("vit-base", [(64, 0, 0)], lora=16, quantize="int8"),
    *of("tabular", [(1024, 0, 0), (65536, 0, 0)], ["fp32", "bf16-mixed"], [False]),
    *of("tabular-wide", [(8192, 0, 0)], MIXED, [False]),
]


# What cuDNN's LSTM takes for itself can only be measured.
for features in (64, 512, 4096):
    for hidden, layers, both in ((384, 1, True), (384, 2, True), (384, 1, False), (1024, 1, True), (128, 3, True), (512, 2, False)):
        lstm_name = f"hybrid-{features}-{hidden}x{layers}{'' if both else '-forward'}"
        MODELS[lstm_name] = ("hybrid-cnn-lstm", hybrid([features], lstm_hidden=hidden, lstm_layers=layers, bidirectional=both))
        CONFIGURATIONS += of(lstm_name, [(128, 0, 0)], ["fp32", "bf16-mixed"], [False])
CONFIGURATIONS += of("hybrid-512-384x2", [(512, 0, 0)], ["fp32", "fp16-mixed"], [False])

# Shapes of which nothing was known when the estimates were written.
HELD_OUT = [
    *of("t5-odd", [(12, 208, 80)], ["fp32", "bf16", "fp16-mixed"]), *of("t5-odd", [(3, 720, 48)], ["bf16-mixed"], accum=3),
    *of("t5-deep-relu", [(24, 96, 160)], ["tf32", "bf16"]), *of("t5-large", [(5, 304, 304)], ["fp16-mixed"], accum=2),
    *of("bert-odd", [(20, 208, 0)], ["fp32", "bf16-mixed"]), *of("bert-odd", [(7, 464, 0)], ["bf16"], padded=False),
    *of("roberta-large", [(12, 320, 0)], ["tf32", "bf16"]), *of("bert-large", [(10, 176, 0)], ["bf16"], optimizer="adafactor"),
    *of("t5-odd", [(6, 399, 201)], accum=2), *of("t5-large", [(3, 1021, 33)], ["bf16-mixed"], optimizer="adafactor"),
    *of("bert-odd", [(9, 333, 0)], ["fp16-mixed", "fp32"]), *of("roberta-large", [(5, 511, 0)], accum=2, optimizer="adafactor"),
    *of("deberta-odd", [(10, 208, 0)], ["fp32", "bf16-mixed"]), *of("deberta-v3-large", [(3, 496, 0)], ["bf16"], accum=2),
    *of("clip-l-14", [(24, 77, 0)], ["fp16-mixed", "bf16"]), *of("clip-b-16", [(20, 48, 0)], ["bf16-mixed"], accum=3),
    *of("hybrid-odd", [(96, 0, 0)], ["fp32", "bf16-mixed"]), *of("hybrid", [(200, 0, 0)], ["bf16"]),
    *of("mu-sota-odd", [(12, 384, 0)], ["fp32", "bf16-mixed", "bf16"]), *of("mu-sota", [(20, 320, 0)], ["fp16-mixed"], accum=2),
    *of("bert-odd-tokens", [(7, 333, 0)], ["fp32", "bf16"]), *of("vit-odd", [(50, 0, 0)], ["fp32", "bf16-mixed"]),
    # Those on which the estimates before these were too low, and others like them.
    *of("t5-large", [(6, 450, 200)], ["bf16-mixed"], accum=2), *of("mu-sota-20", [(11, 401, 0)], ["bf16", "fp32"], accum=2),
    *of("t5-base", [(13, 777, 111)], accum=5), *of("t5-narrow", [(40, 61, 19), (9, 640, 30)], ["bf16", "fp16-mixed"]),
    *of("t5-wide", [(7, 275, 150)], ["bf16", "bf16-mixed"]), *of("t5-wide", [(2, 1200, 20)], ["fp32"], accum=2),
    *of("t5-xl", [(3, 200, 310)]), *of("bert-small", [(100, 60, 0), (12, 500, 0)], ["bf16", "bf16-mixed"]),
    *of("bert-small", [(64, 128, 0)], ["fp32"], accum=2), *of("xlm-roberta-large", [(6, 290, 0)], ["bf16", "fp16-mixed"]),
    *of("roberta-base", [(40, 77, 0)], ["bf16-mixed"], accum=2), *of("bert-odd-tokens", [(15, 222, 0)], ["bf16-mixed"]),
    *of("llama-odd", [(12, 401, 0)], ["bf16", "bf16-mixed", "fp32"]), *of("llama-odd", [(3, 1300, 0)], accum=3),
    *of("qwen3-odd", [(6, 600, 0)], ["bf16", "fp16-mixed"]), *of("qwen3-odd", [(9, 250, 0)], optimizer="adafactor"),
    *of("llama-3b", [(2, 1500, 0)]), *of("llama-3b", [(5, 700, 0)], lora=32), *of("tinyllama", [(3, 911, 0)], ["bf16-mixed"]),
    *of("llama-odd", [(12, 401, 0)], ["bf16", "fp16-mixed"], lora=4), *of("qwen3-odd", [(7, 512, 0)], lora=16, accum=2),
    *of("tinyllama", [(6, 650, 0)], ["fp32"], lora=8), *of("smollm2-135m", [(30, 128, 0)], ["bf16-mixed"], accum=2),
    *of("t5-odd", [(12, 208, 80)], ["bf16", "fp16-mixed"], lora=4), *of("t5-large", [(5, 304, 304)], lora=32, accum=2),
    *of("t5-wide", [(7, 275, 150)], lora=16, quantize="nf4"), *of("bert-odd", [(20, 208, 0)], ["bf16", "fp32"], lora=8),
    *of("roberta-large", [(12, 320, 0)], lora=64), *of("bert-odd-tokens", [(7, 333, 0)], ["bf16-mixed"], lora=16),
    *of("xlm-roberta-large", [(6, 290, 0)], lora=16, quantize="int8"), *of("deberta-odd", [(10, 208, 0)], ["bf16", "fp32"], lora=8),
    *of("clip-l-14", [(24, 77, 0)], lora=16), *of("clip-l-14", [(24, 77, 0)], ["fp16-mixed"], lora=16, quantize="nf4"),
    *of("vit-odd", [(50, 0, 0)], ["bf16", "fp32"], lora=8),
    *of("resnet-odd", [(90, 0, 0)], ["fp32", "bf16", "fp16-mixed"], [False], accum=2),
]


def complete(given):
    arch, config = MODELS[given["model"]]
    text = arch in ("t5", "bert", "roberta", "xlm-roberta", "deberta-v3", "clip")
    return dict(given, arch=arch, config=config, accum=given.get("accum", 1), optimizer=given.get("optimizer", "adamw"),
                padded=given.get("padded", True) and text, lora=given.get("lora", 0),
                lora_dropout=given.get("lora_dropout", 0.0), quantize=given.get("quantize", "none"))


def name(given):
    words = [given["model"], given["precision"], f"{given['batch']}x{given['source']}x{given['target']}"]
    words += ["checkpointing"] * given["checkpointing"] + ["bare"] * (given.get("padded") is False)
    return " ".join(words + [f"{key}={given[key]}" for key in ("accum", "optimizer", "lora", "lora_dropout", "quantize") if key in given])


def needed(trainer, given, measured):
    """The least limit within which the steps still run. In fp32 cuDNN takes for convolutions what it likes where there is room, and
    does with less where there is none: the peak alone says little."""
    fails, runs = measured["weights"] + measured["optimizer"], measured["reserved"]
    while runs - fails > 0.008 * runs:
        middle = (fails + runs) // 2
        if bench(trainer, given, ["--limit", f"{middle >> 20}m"]).returncode == 0:
            runs = middle
        else:
            fails = middle
    return runs


def measure(trainer, given):
    full = complete(given)
    ended = bench(trainer, given)
    if ended.returncode != 0:
        return None, f"exit {ended.returncode}: {ended.stderr.strip()[-300:]}"
    said = json.loads(ended.stdout.strip().splitlines()[-1])
    if full["arch"] in ("hybrid-cnn-lstm", "resnet") and full["precision"] == "fp32":
        said["memory"]["needed"] = needed(trainer, given, said["memory"])
    return dict(name=name(given), **full, device=said["device"], params=said["params"], **{"measured": said["memory"]}), None


def bench(trainer, given, more=()):
    full = complete(given)
    command = [f"{trainer}-bench", "steps", "--steps", "1", "--arch", full["arch"], "--config", json.dumps(full["config"])]
    for key in ("batch", "accum", "optimizer", "precision", "source", "target"):
        command += [f"--{key}", str(max(full[key], 1) if isinstance(full[key], int) else full[key])]
    command += ["--lora", str(full["lora"]), "--lora-dropout", str(full["lora_dropout"])] if full["lora"] else []
    command += ["--quantize", full["quantize"]] if full["quantize"] != "none" else []
    command += ["--checkpointing"] * full["checkpointing"] + ["--padded"] * full["padded"]
    return subprocess.run([*command, *more], capture_output=True, text=True)


# GiB of steps of large models that nothing is known of yet.
LARGE = {"llama-8b": 62, "llama-3b": 40}


class Room:
    """GiB of the card, shared by what is measured at a time: each takes what it needed the last time."""

    def __init__(self, before):
        entries = [json.loads(line) for path in before for line in open(path)]
        self.known = {entry["name"]: entry["measured"]["reserved"] / 2**30 for entry in entries}
        self.free, self.changed = 120.0, threading.Condition()

    def measure(self, trainer, given, until):
        needs = min(self.known.get(name(given), LARGE.get(given["model"], 20)) + 1, 120)
        with self.changed:
            self.changed.wait_for(lambda: self.free >= needs)
            self.free -= needs
        try:
            return (None, "no time left") if time.time() > until else measure(trainer, given)
        finally:
            with self.changed:
                self.free += needs
                self.changed.notify_all()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trainer", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument("--held-out", action="store_true", help="the other list of configurations")
    parser.add_argument("--seconds", type=int, default=3600, help="begin no measurement after so many")
    parser.add_argument("--archs", help="only those, with commas between them")
    parser.add_argument("--before", nargs="*", default=[], help="files of earlier measurements, which say how much fits at a time")
    parser.add_argument("words", nargs="*")
    args = parser.parse_args()
    configurations = HELD_OUT if args.held_out else CONFIGURATIONS
    wanted = [given for given in configurations if all(word in name(given).split() for word in args.words)]
    if args.archs:
        wanted = [given for given in wanted if MODELS[given["model"]][0] in args.archs.split(",")]
    began, failed, room = time.time(), 0, Room(args.before)
    until = began + args.seconds
    with concurrent.futures.ThreadPoolExecutor(args.at_once) as pool, open(args.out, "w") as out:
        for given, (entry, error) in zip(wanted, pool.map(lambda given: room.measure(args.trainer, given, until), wanted)):
            if error:
                failed += 1
                print(f"FAILED {name(given)}: {error}")
                continue
            out.write(json.dumps(entry) + "\n")
    print(f"{len(wanted) - failed} of {len(wanted)} measured in {time.time() - began:.0f} s")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
