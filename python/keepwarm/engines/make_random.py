"""Writes a Llama with random weights: `python make_random.py FOLDER CONFIG-AS-JSON`.

Runs in an engine's environment, without keepwarm.
"""

from __future__ import annotations

import json
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

if __name__ == "__main__":
    folder, recipe = sys.argv[1:]
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**json.loads(recipe))).save_pretrained(folder)
