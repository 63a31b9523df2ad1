"""Reads what a `config.json` says of the layers that keep something for each token.

One function per way of attention, and a table of which `model_type` goes which way. A type that is
not in the table is refused: a wrong figure that looks right is worse than none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from keepwarm.errors import ConfigError

LAYERS_MAX = 4096
#: Bytes that an fp8 index of sparse attention keeps: 128 values, and one float32 scale for them.
_INDEX_SCALE_BYTES = 4
_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class Layers:
    """Layers that keep the same."""

    kind: str  # attention, window, latent, index, state
    count: int
    token_bytes: int = 0
    window_tokens: int | None = None  # None: every token is kept
    state_bytes: int = 0  # once a sequence


@dataclass(frozen=True, slots=True)
class Fields:
    """A configuration whose fields are asked for by name; what is absent is an error."""

    where: str
    values: Mapping[str, Any]

    def count(self, name: str) -> int:
        """A whole number above 0."""
        value = self.values.get(name)
        if value is None:
            raise ConfigError(
                f"{self.where} does not say {name}: add it, as its model has it", name
            )
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 40:
            raise ConfigError(f"{self.where}: {name} is no whole number above 0", name)
        return value

    def maybe(self, name: str) -> int | None:
        """A whole number above 0, or None where the field is absent, null or 0."""
        return self.count(name) if self.values.get(name) else None

    def text(self, name: str) -> str:
        """A word."""
        value = self.values.get(name)
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{self.where} does not say {name}: give a model's config.json", name)
        return value

    def sequence(self, name: str, length: int | None = None) -> list[Any]:
        """A list, or the characters of a text; of one value a layer where `length` says so."""
        value = self.values.get(name)
        found = list(value) if isinstance(value, list | str) else None
        if not found:
            raise ConfigError(f"{self.where} does not say {name}: one value for each layer", name)
        if length is not None and len(found) < length:
            raise ConfigError(f"{self.where}: {name} has {len(found)} values, not {length}", name)
        return found if length is None else found[:length]

    def dtype(self) -> str:
        """What weights, and without other advice the cache, are made of."""
        for name in ("torch_dtype", "dtype"):
            if isinstance(value := self.values.get(name), str):
                return value.removeprefix("torch.")
        raise ConfigError(
            f"{self.where} does not say torch_dtype: add it, or say --kv-dtype bfloat16",
            "torch_dtype",
        )

    def layers(self) -> int:
        """How many layers."""
        count = self.count("num_hidden_layers")
        if count > LAYERS_MAX:
            raise ConfigError(
                f"{self.where}: {count} layers are more than any", "num_hidden_layers"
            )
        return count

    def head_dim(self) -> int:
        """As named, else how these architectures derive it."""
        if named := self.maybe("head_dim"):
            return named
        hidden, heads = self.count("hidden_size"), self.count("num_attention_heads")
        if hidden % heads:
            raise ConfigError(
                f"{self.where} does not say head_dim, and {hidden} is no multiple of {heads} heads",
                "head_dim",
            )
        return hidden // heads

    def kv_bytes(self, element: int) -> int:
        """Keys and values of one token in one layer."""
        return 2 * self.count("num_key_value_heads") * self.head_dim() * element


def text_fields(config: Mapping[str, Any], where: str) -> Fields:
    """The language model's part, where a configuration nests it beside other parts."""
    for name in ("text_config", "llm_config", "language_config"):
        nested = config.get(name)
        if isinstance(nested, dict):
            merged = {
                key: config[key] for key in ("torch_dtype", "dtype") if config.get(key) is not None
            }
            if "model_type" not in nested and "model_type" in config:
                merged["model_type"] = config["model_type"]
            merged |= {key: value for key, value in nested.items() if value is not None}
            return Fields(f"{where} ({name})", merged)
    return Fields(where, config)


def layers_of(fields: Fields, element: int) -> tuple[Layers, ...]:
    """What each layer keeps, `element` bytes a value; raises ConfigError that names the field."""
    kind = fields.text("model_type")
    way = WAYS.get(kind)
    if way is None:
        raise ConfigError(
            f"{fields.where}: model_type {kind!r} is not one whose cache is known here: "
            "measure an engine's own bytes a token, and give --kv-bytes-per-token",
            "model_type",
        )
    return tuple(each for each in way(fields, element) if each.count)


def _window_layers(fields: Fields, windowed: int, element: int, window: int) -> list[Layers]:
    token_bytes = fields.kv_bytes(element)
    return [
        Layers("attention", fields.layers() - windowed, token_bytes),
        Layers("window", windowed, token_bytes, window_tokens=window),
    ]


def _attention(fields: Fields, element: int) -> list[Layers]:
    """Grouped or multi-head attention; all layers with a window where one is named."""
    if kinds := fields.values.get("attn_type_list"):
        if any(each != 1 for each in kinds):
            raise ConfigError(
                f"{fields.where}: attn_type_list has layers of linear attention, which are not "
                "known here: give --kv-bytes-per-token",
                "attn_type_list",
            )
        return _window_layers(fields, 0, element, 0)
    if fields.values.get("layer_types"):
        return _by_layer_types(fields, element)
    window = fields.maybe("sliding_window")
    return _window_layers(fields, fields.layers() if window else 0, element, window or 0)


def _qwen(fields: Fields, element: int) -> list[Layers]:
    """A window counts only where `use_sliding_window` says so, from `max_window_layers` on."""
    if not fields.values.get("use_sliding_window"):
        return _window_layers(fields, 0, element, 0)
    window = fields.count("sliding_window")
    first = fields.values.get("max_window_layers")
    if not isinstance(first, int):
        raise ConfigError(
            f"{fields.where} uses a sliding window and does not say max_window_layers",
            "max_window_layers",
        )
    return _window_layers(fields, max(0, fields.layers() - first), element, window)


def _by_layer_types(fields: Fields, element: int) -> list[Layers]:
    kinds = fields.sequence("layer_types", fields.layers())
    known = {"full_attention", "attention", "sliding_attention", "chunked_attention"}
    if unknown := sorted({str(each) for each in kinds} - known):
        raise ConfigError(f"{fields.where}: layer_types has {unknown[0]!r}", "layer_types")
    windowed = sum(each in ("sliding_attention", "chunked_attention") for each in kinds)
    window = fields.count(_window_name(fields)) if windowed else 0
    return _window_layers(fields, windowed, element, window)


def _window_name(fields: Fields) -> str:
    return "attention_chunk_size" if fields.maybe("attention_chunk_size") else "sliding_window"


def _alternating(every: int) -> Callable[[Fields, int], list[Layers]]:
    """Windows but in each `every`th layer, as Gemma's code has it where no list of layers is."""

    def layers(fields: Fields, element: int) -> list[Layers]:
        if fields.values.get("layer_types"):
            return _by_layer_types(fields, element)
        apart = fields.maybe("sliding_window_pattern") or fields.maybe("_sliding_window_pattern")
        apart = apart or every
        full = fields.layers() // apart
        return _window_layers(
            fields, fields.layers() - full, element, fields.count("sliding_window")
        )

    return layers


def _llama4(fields: Fields, element: int) -> list[Layers]:
    """Attention within chunks but in layers without rotary positions, every 4th if not listed."""
    if fields.values.get("layer_types"):
        return _by_layer_types(fields, element)
    count = fields.layers()
    listed = fields.values.get("no_rope_layers")
    apart = fields.maybe("no_rope_layer_interval") or 4
    chunked = sum(map(bool, listed)) if listed else count - count // apart
    return _window_layers(fields, chunked, element, fields.count("attention_chunk_size"))


def _gemma4(fields: Fields, element: int) -> list[Layers]:
    """Layers that see everything have heads of their own; the last ones may share others' cache."""
    count = fields.layers()
    shared = fields.maybe("num_kv_shared_layers") or 0
    kinds = fields.sequence("layer_types", count)[: count - shared]
    windowed = sum(each == "sliding_attention" for each in kinds)
    heads = fields.maybe("num_global_key_value_heads") or fields.count("num_key_value_heads")
    full_bytes = 2 * heads * fields.count("global_head_dim") * element
    window = fields.count("sliding_window")
    return [
        Layers("attention", len(kinds) - windowed, full_bytes),
        Layers("window", windowed, fields.kv_bytes(element), window_tokens=window),
    ]


def _mimo_v2(fields: Fields, element: int) -> list[Layers]:
    """Keys and values of different widths; 1 in `hybrid_layer_pattern` is a window."""
    kinds = fields.sequence("hybrid_layer_pattern", fields.layers())
    windowed = sum(each == 1 for each in kinds)
    full = fields.count("num_key_value_heads") * (fields.count("head_dim") + _values(fields))
    swa = fields.count("swa_num_key_value_heads") * (
        fields.count("swa_head_dim") + fields.count("swa_v_head_dim")
    )
    window = fields.count("sliding_window")
    return [
        Layers("attention", len(kinds) - windowed, full * element),
        Layers("window", windowed, swa * element, window_tokens=window),
    ]


def _values(fields: Fields) -> int:
    return fields.count("v_head_dim")


def _latent_bytes(fields: Fields, element: int) -> int:
    """Multi-head latent attention keeps one compressed vector, and the rotary part of the keys."""
    return (fields.count("kv_lora_rank") + fields.count("qk_rope_head_dim")) * element


def _latent(fields: Fields, element: int) -> list[Layers]:
    return [Layers("latent", fields.layers(), _latent_bytes(fields, element))]


def _sparse_latent(fields: Fields, element: int) -> list[Layers]:
    """And an index of fp8 values with a scale, in the layers that have one of their own."""
    kinds = fields.values.get("indexer_types")
    count = fields.layers()
    if kinds:
        count = sum(each == "full" for each in fields.sequence("indexer_types", count))
    index = fields.count("index_head_dim") + _INDEX_SCALE_BYTES
    return [*_latent(fields, element), Layers("index", count, index)]


def _gated_delta(fields: Fields, element: int) -> list[Layers]:
    """Qwen3-Next and 3.5: linear attention but in each `full_attention_interval`th layer."""
    count = fields.layers()
    if fields.values.get("layer_types"):
        kinds = fields.sequence("layer_types", count)
        full = sum(each == "full_attention" for each in kinds)
    else:
        full = count // fields.count("full_attention_interval")
    heads, width = fields.count("linear_num_value_heads"), fields.count("linear_value_head_dim")
    keys = fields.count("linear_num_key_heads") * fields.count("linear_key_head_dim")
    matrix = heads * width * fields.count("linear_key_head_dim")
    taps = (fields.count("linear_conv_kernel_dim") - 1) * (2 * keys + heads * width)
    state = matrix * _state_element(fields, element) + taps * _plain_element(element)
    return [
        Layers("attention", full, fields.kv_bytes(element)),
        Layers("state", count - full, state_bytes=state),
    ]


def _kimi_linear(fields: Fields, element: int) -> list[Layers]:
    """Kimi's delta attention keeps float32 states; its other layers are latent."""
    nested = fields.values.get("linear_attn_config")
    if not isinstance(nested, dict):
        raise ConfigError(f"{fields.where} does not say linear_attn_config", "linear_attn_config")
    inner = Fields(f"{fields.where} linear_attn_config", nested)
    full, linear = (len(inner.sequence(each)) for each in ("full_attn_layers", "kda_layers"))
    heads, width = inner.count("num_heads"), inner.count("head_dim")
    taps = 3 * heads * width * (inner.count("short_conv_kernel_size") - 1)
    state = heads * width * width * _FLOAT32_BYTES + taps * _plain_element(element)
    return [
        Layers("latent", full, _latent_bytes(fields, element)),
        Layers("state", linear, state_bytes=state),
    ]


def _mamba_bytes(
    fields: Fields, element: int, heads: str, width: str, state: str, groups: str, taps: str
) -> int:
    """Mamba-2: a matrix for each head, and the last inputs of its convolution."""
    inner = fields.count(heads) * fields.count(width)
    matrix = inner * fields.count(state)
    mixed = inner + 2 * fields.count(groups) * fields.count(state)
    inputs = mixed * (fields.count(taps) - 1)
    return matrix * _state_element(fields, element) + inputs * _plain_element(element)


def _nemotron_h(fields: Fields, element: int) -> list[Layers]:
    """`hybrid_override_pattern`: M is Mamba-2, * attention, others keep nothing."""
    pattern = fields.sequence("hybrid_override_pattern", fields.layers())
    width = fields.count("attention_head_dim" if "head_dim" not in fields.values else "head_dim")
    token_bytes = 2 * fields.count("num_key_value_heads") * width * element
    names = ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel")
    return [
        Layers("attention", pattern.count("*"), token_bytes),
        Layers("state", pattern.count("M"), state_bytes=_mamba_bytes(fields, element, *names)),
    ]


def _granite_hybrid(fields: Fields, element: int) -> list[Layers]:
    kinds = fields.sequence("layer_types", fields.layers())
    mamba = sum(each == "mamba" for each in kinds)
    names = ("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv")
    state = _mamba_bytes(fields, element, *names) if mamba else 0
    return [
        Layers("attention", len(kinds) - mamba, fields.kv_bytes(element)),
        Layers("state", mamba, state_bytes=state),
    ]


def _nemotron_nas(fields: Fields, element: int) -> list[Layers]:
    """Each layer has its own number of heads, or no attention at all."""
    heads, width = fields.count("num_attention_heads"), fields.head_dim()
    found: list[Layers] = []
    for block in fields.sequence("block_configs", fields.layers()):
        attention = block.get("attention", {}) if isinstance(block, dict) else {}
        if attention.get("no_op") or attention.get("replace_with_linear"):
            continue
        inner = Fields(f"{fields.where} block_configs attention", attention)
        kv_heads = heads // inner.count("n_heads_in_group")
        window = inner.maybe("window_length")
        kind = "window" if window else "attention"
        found.append(Layers(kind, 1, 2 * kv_heads * width * element, window_tokens=window))
    return [
        Layers(each.kind, found.count(each), each.token_bytes, each.window_tokens)
        for each in dict.fromkeys(found)
    ]


def _plain_element(element: int) -> int:
    """States beside matrices stay 16 bits wide where attention's cache is fp8."""
    return max(element, 2)


def _state_element(fields: Fields, element: int) -> int:
    named = fields.values.get("mamba_ssm_dtype") or fields.values.get("mamba_ssm_cache_dtype")
    return _FLOAT32_BYTES if named == "float32" else _plain_element(element)


#: Which way each `model_type` goes.
WAYS: dict[str, Callable[[Fields, int], list[Layers]]] = {
    **dict.fromkeys(
        ("llama", "mistral", "ministral3", "mixtral", "phi3", "granite", "granitemoe", "glm4"),
        _attention,
    ),
    **dict.fromkeys(("glm", "glm4_moe", "minimax_m2", "olmo2", "olmo3", "starcoder2"), _attention),
    **dict.fromkeys(("gpt_oss",), _by_layer_types),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "mimo"), _qwen),
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text"), _qwen),
    **dict.fromkeys(("qwen3_vl_text", "qwen3_vl_moe_text"), _qwen),
    **dict.fromkeys(("gemma2",), _alternating(2)),
    **dict.fromkeys(("gemma3", "gemma3_text"), _alternating(6)),
    **dict.fromkeys(("cohere2",), _alternating(4)),
    **dict.fromkeys(("gemma4_text",), _gemma4),
    **dict.fromkeys(("llama4", "llama4_text"), _llama4),
    **dict.fromkeys(("mimo_v2_flash",), _mimo_v2),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite"), _latent),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), _sparse_latent),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _gated_delta),
    **dict.fromkeys(("kimi_linear",), _kimi_linear),
    **dict.fromkeys(("nemotron_h",), _nemotron_h),
    **dict.fromkeys(("granitemoehybrid",), _granite_hybrid),
    **dict.fromkeys(("nemotron-nas",), _nemotron_nas),
}
