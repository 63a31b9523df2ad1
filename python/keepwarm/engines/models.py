"""Small models for tests and the demo, made once in the user's cache folder, offline but for one.

The random ones say nothing sensible and always the same; they need no tokenizer.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from types import MappingProxyType
from typing import Any

from keepwarm.engines.folders import Report, cache, clear, ensure_folder

# Run in the engine's environment, by path: keepwarm.engines.make_random.
SCRIPT = Path(__file__).with_name("make_random.py")

_LLAMA: dict[str, Any] = {
    "vocab_size": 2048,
    "max_position_embeddings": 16384,
    "tie_word_embeddings": True,
    "initializer_range": 0.08,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
_TINY: dict[str, Any] = _LLAMA | {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
MODELS: MappingProxyType[str, dict[str, Any]] = MappingProxyType(
    {
        # 512 bytes of fp32 KV a token and layer
        "micro": _LLAMA
        | {
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        },
        # 8 KiB of fp32 KV a token
        "tiny": _TINY,
        # 5 layers in two groups of sliding windows and one of full attention
        "hybrid": _TINY
        | {
            "num_hidden_layers": 5,
            "layer_types": ["full_attention", "sliding_attention"] * 2 + ["sliding_attention"],
            "sliding_window": 64,
        },
    }
)


def ensure_model(name: str, python: Path, report: Report) -> Path:
    """The folder of a model, made now if it is not there, by the engine's `python`."""
    recipe = json.dumps(MODELS[name], sort_keys=True)
    digest = hashlib.sha256(recipe.encode() + SCRIPT.read_bytes()).hexdigest()[:12]

    def make(folder: Path) -> None:
        clear(folder)
        report(f"making the random model {name} in {folder}")
        subprocess.run([python, SCRIPT, folder, recipe], check=True)

    return ensure_folder(cache() / "models" / f"{name}-{digest}", make, report)
