"""How many bytes a model keeps for a prompt: per token, per window, per sequence.

From a table of common models (`models.toml`, each entry with its source) or from any local
`config.json`. What a configuration does not say is an error that names the field, never a default.
Counted for one copy of the model, all ranks together; draft (MTP) layers are not counted.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from keepwarm.errors import ConfigError
from keepwarm.workload.configs import Fields, Layers, layers_of, text_fields
from keepwarm.workload.prefill_work import PrefillWork, work_of

CONFIG_BYTES_MAX = 16 << 20

#: Parts of a model's name that change nothing of its geometry; and so do months (2507).
_SAME = re.compile(
    r"instruct|chat|base|it|pt|hf|thinking|preview|dynamic|fp8|fp4|nvfp4|bf16|awq|gptq|gguf|\d{4}"
)
#: How a --model argument and a config.json name what elements of the cache are.
KV_DTYPES = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "int8": 1,
}


@dataclass(frozen=True, slots=True)
class Geometry:
    """What one model keeps."""

    model: str
    source: str
    kv_dtype: str
    layers: tuple[Layers, ...]
    #: Arithmetic of a prompt; None where the configuration does not say enough for it, with why.
    work: PrefillWork | None
    work_missing: str = ""

    def bytes_per_token(self) -> int:
        """Of the layers that keep every token: what a long prompt grows by."""
        return sum(each.count * each.token_bytes for each in self.layers if not each.window_tokens)

    def window_bytes_per_token(self) -> int:
        """Of the layers that forget all but a window of tokens."""
        return sum(each.count * each.token_bytes for each in self.layers if each.window_tokens)

    def state_bytes(self) -> int:
        """Of the layers that keep a state of fixed size (linear attention, Mamba)."""
        return sum(each.count * each.state_bytes for each in self.layers)

    def session_bytes(self, tokens: int) -> int:
        """What an engine needs for a sequence of so many tokens."""
        total = self.state_bytes()
        for each in self.layers:
            kept = min(tokens, each.window_tokens) if each.window_tokens else tokens
            total += each.count * each.token_bytes * kept
        return total

    def snapshot_tokens(self, block_tokens: int) -> int:
        """How far apart states are kept so that a prefix can be continued from one; 0: none.

        vLLM makes a block of attention at least as large as a layer's state; so is it here.
        """
        states = [each.state_bytes for each in self.layers if each.state_bytes]
        tokens = [each.token_bytes for each in self.layers if each.token_bytes]
        if not states:
            return 0
        return max(block_tokens, -(-max(states) // max(tokens)) if tokens else block_tokens)

    def stored_bytes_per_token(self, block_tokens: int) -> float:
        """What a memory keeps for a token of a prefix that can be continued at any of its blocks.

        Layers with a window are kept whole, since any block may be the last one of a match; states
        are kept every `snapshot_tokens`.
        """
        attention = self.bytes_per_token() + self.window_bytes_per_token()
        apart = self.snapshot_tokens(block_tokens)
        return attention + (self.state_bytes() / apart if apart else 0.0)

    def as_json(self) -> dict[str, Any]:
        """For reports: documented in docs/workload.md."""
        return {
            "model": self.model,
            "source": self.source,
            "kv_dtype": self.kv_dtype,
            "bytes_per_token": self.bytes_per_token(),
            "window_bytes_per_token": self.window_bytes_per_token(),
            "state_bytes": self.state_bytes(),
            "layers": [
                {
                    "kind": each.kind,
                    "count": each.count,
                    "bytes_per_token": each.token_bytes,
                    "window_tokens": each.window_tokens,
                    "state_bytes": each.state_bytes,
                }
                for each in self.layers
            ],
        }


def geometry(model: str, kv_dtype: str = "") -> Geometry:
    """Of a model by name, of a `config.json`, or of a folder that has one.

    `kv_dtype` says what elements of the cache are (`fp8`, `bfloat16`...) where the engine is told
    so; empty: what the configuration says. Raises ConfigError that names what is missing.
    """
    path = Path(model)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return from_config(_read(path), str(path), kv_dtype, name=path.resolve().parent.name)
    if model.endswith(".json") or model.count("/") > 1:
        raise ConfigError(f"{model}: no such file: give a config.json or a model's name", "model")
    entry = _find(model)
    if entry is None:
        raise ConfigError(
            f"{model} is not in the table of models: give the path of its config.json, or one of "
            f"{', '.join(sorted(_suggest(model)))}",
            "model",
        )
    asked = _exact(model)
    named = next((each for each in entry["names"] if each.lower() == asked), entry["names"][0])
    return from_config(entry["config"], entry["source"], kv_dtype, name=named)


def from_config(
    config: Mapping[str, Any], source: str, kv_dtype: str = "", *, name: str = ""
) -> Geometry:
    """Of a parsed `config.json`."""
    fields = text_fields(config, source)
    element, shown = _element(fields, config, kv_dtype)
    layers = layers_of(fields, element)
    work, missing = None, ""
    try:
        work = work_of(fields)
    except ConfigError as error:
        missing = str(error)
    called = name or str(config.get("_name_or_path") or fields.text("model_type"))
    return Geometry(called, source, shown, layers, work, missing)


def models() -> dict[str, str]:
    """Every name of the table, with the source of its entry."""
    return {name: entry["source"] for entry in _table() for name in entry["names"]}


@cache
def _table() -> tuple[dict[str, Any], ...]:
    text = resources.files("keepwarm.workload").joinpath("models.toml").read_text("utf-8")
    return tuple(tomllib.loads(text)["model"])


def _exact(name: str) -> str:
    """A model's name without its owner."""
    return name.rpartition("/")[2].lower()


def _plain(name: str) -> str:
    """A model's name without its owner and the parts that change nothing."""
    parts = _exact(name).split("-")
    return "-".join(each for each in parts if not _SAME.fullmatch(each))


def _find(model: str) -> dict[str, Any] | None:
    """By its exact name, else by what is left of it."""
    exact = _exact(model)
    for entry in _table():
        if exact in (name.lower() for name in entry["names"]):
            return entry
    for entry in _table():
        if _plain(model) in (_plain(name) for name in entry["names"]):
            return entry
    return None


def _suggest(model: str) -> list[str]:
    """Names that begin alike, else the first of each kind; at most a dozen."""
    every = list(models())
    alike = [name for name in every if name.lower()[:4] == _plain(model)[:4]]
    return (alike or [entry["names"][0] for entry in _table()[:: max(1, len(_table()) // 12)]])[:12]


def _read(path: Path) -> Mapping[str, Any]:
    if path.stat().st_size > CONFIG_BYTES_MAX:
        raise ConfigError(f"{path} has more than {CONFIG_BYTES_MAX >> 20} MiB: no config.json")
    try:
        parsed = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ConfigError(f"{path} is not a JSON object: give a model's config.json")
    return parsed


def _element(fields: Fields, config: Mapping[str, Any], asked: str) -> tuple[int, str]:
    """Bytes of an element of the cache, and what it is called."""
    if asked and asked not in KV_DTYPES:
        raise ConfigError(f"kv-dtype is {asked!r}: give one of {', '.join(KV_DTYPES)}", "kv-dtype")
    named = asked or _quantised(config) or fields.dtype()
    if named not in KV_DTYPES:
        raise ConfigError(
            f"{fields.where}: dtype {named!r} is not known: say what the cache has, with "
            f"--kv-dtype {'|'.join(KV_DTYPES)}",
            "dtype",
        )
    return KV_DTYPES[named], named


def _quantised(config: Mapping[str, Any]) -> str:
    """What a quantised checkpoint says that its KV cache is, or nothing."""
    found = config.get("quantization_config")
    if not isinstance(found, dict):
        return ""
    scheme = found.get("kv_cache_scheme")
    if isinstance(scheme, dict) and scheme.get("num_bits") == 8:
        return "fp8" if scheme.get("type") == "float" else "int8"
    algorithm = found.get("kv_cache_quant_algo")
    return "fp8" if isinstance(algorithm, str) and algorithm.upper() == "FP8" else ""
