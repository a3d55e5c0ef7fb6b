#!/usr/bin/env python3
"""Loads an exported model in transformers, or an exported adapter in PEFT, and compares its logits with those that pipe-trainer computed for
the same batch.
usage: export_check.py MODEL-FOLDER batch.safetensors out.safetensors   (out: of `pipe-trainer-bench parity`)"""
import json
import pathlib
import sys

import numpy
import torch
import transformers
from safetensors.torch import load_file

[name] = json.loads((pathlib.Path(sys.argv[1]) / "config.json").read_text())["architectures"]
adapter = pathlib.Path(sys.argv[1]) / "adapter_config.json"
if adapter.is_file():
    import warnings

    import peft

    settings = json.loads(adapter.read_text())
    config = transformers.AutoConfig.from_pretrained(sys.argv[1])
    model = getattr(transformers, name).from_pretrained(settings["base_model_name_or_path"], config=config, dtype=torch.float32)
    # A key that has no place is a warning there.
    warnings.simplefilter("error", UserWarning)
    model = peft.PeftModel.from_pretrained(model, sys.argv[1])
    warnings.simplefilter("default", UserWarning)
else:
    model, info = getattr(transformers, name).from_pretrained(sys.argv[1], dtype=torch.float32, output_loading_info=True)
    missing = [key for key in (*info["missing_keys"], *info["unexpected_keys"])]
    assert not missing, f"keys that do not fit: {missing}"
if model.config.model_type == "clip" and not adapter.is_file():
    # What the trainer has read, loads as what prepares pictures.
    processor = transformers.CLIPProcessor.from_pretrained(sys.argv[1])
    edge = model.config.vision_config.image_size
    pictures = processor.image_processor
    assert dict(pictures.crop_size) == {"height": edge, "width": edge} and dict(pictures.size) == {"shortest_edge": edge}, pictures
    assert pictures.resample == 3 and pictures.do_rescale and pictures.do_normalize, pictures
if model.config.model_type in ("vit", "resnet") and not adapter.is_file():
    pictures, size = transformers.AutoImageProcessor.from_pretrained(sys.argv[1]), load_file(sys.argv[2])["pixel_values"].shape[-1]
    found = pictures(numpy.zeros((size, 2 * size, 3), dtype="uint8"), return_tensors="pt")["pixel_values"].shape
    assert found == (1, 3, size, size), found
batch, ours = load_file(sys.argv[2]), load_file(sys.argv[3])["logits"]
with torch.no_grad():
    answer = model.eval()(**batch)
theirs = answer.logits if "logits" in answer else answer.logits_per_image
apart = (theirs - ours).abs().max() / theirs.abs().max()
print(f"logits at most {apart:.1e} apart")
assert apart < 1e-4
