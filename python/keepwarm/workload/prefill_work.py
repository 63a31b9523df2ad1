"""Arithmetic that computing a prompt takes, from a model's configuration.

Two operations (multiply, add) for each weight that a token passes through, and for attention two
products of a query with each token before it. Embeddings and the output layer are left out: a
prompt passes the one without arithmetic and the other only with its last token. Norms, rotary
positions and routers are below 1 % and left out too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from keepwarm.errors import ConfigError
from keepwarm.workload.configs import Fields, layers_of


@dataclass(frozen=True, slots=True)
class PrefillWork:
    """Operations of one token of a prompt."""

    weights: int  # parameters that a token passes through, embeddings left out
    flops_per_token: float  # wherever the token stands
    flops_per_position: float  # and so much for each token before it

    def flops(self, first: int, tokens: int) -> float:
        """Of `tokens` tokens, the first of which has `first` before it."""
        positions = tokens * (first + (tokens - 1) / 2)
        return self.flops_per_token * tokens + self.flops_per_position * positions


def work_of(fields: Fields) -> PrefillWork:
    """Raises ConfigError that names the field that is missing."""
    hidden = fields.count("hidden_size")
    kinds = {"attention": 0, "window": 0, "latent": 0, "state": 0, "index": 0}
    window = 0
    for each in layers_of(fields, 2):
        if each.kind in kinds:
            kinds[each.kind] += each.count
            window = each.window_tokens or window
    weights, position = _feed_forward(fields, hidden, _mixers(kinds)), 0.0
    local = 0.0
    if kinds["latent"]:
        mixer, per_position = _latent(fields, hidden)
        weights += kinds["latent"] * mixer
        if kinds["index"]:
            local += kinds["latent"] * _chosen_positions(fields)
            mixer, per_position = _index(fields, hidden)
            weights += kinds["index"] * mixer
            position += kinds["index"] * per_position
        else:
            position += kinds["latent"] * per_position
    if kinds["attention"] or kinds["window"]:
        mixer, per_position = _attention(fields, hidden)
        weights += (kinds["attention"] + kinds["window"]) * mixer
        position += kinds["attention"] * per_position
        local += kinds["window"] * per_position * window
    if kinds["state"]:
        weights += kinds["state"] * _state(fields, hidden)
    return PrefillWork(weights, 2.0 * weights + local, position)


def _mixers(kinds: Mapping[str, int]) -> int:
    """Layers; an index is a part of one."""
    return sum(count for kind, count in kinds.items() if kind != "index")


def _attention(fields: Fields, hidden: int) -> tuple[int, float]:
    """Weights of a layer, and operations for each token before: q·k and the sum of values."""
    heads = fields.count("num_attention_heads")
    width = fields.maybe("attention_head_dim") or fields.head_dim()
    values = fields.maybe("v_head_dim") or width
    kv_heads = fields.count("num_key_value_heads")
    weights = hidden * (heads * width + kv_heads * (width + values) + heads * values)
    if fields.text("model_type") in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"):
        weights += hidden * heads * width  # its output gate
    return weights, 2.0 * heads * (width + values)


def _latent(fields: Fields, hidden: int) -> tuple[int, float]:
    """Multi-head latent attention, keys and values unfolded as a prompt's are."""
    heads, latent = fields.count("num_attention_heads"), fields.count("kv_lora_rank")
    plain, rotary = fields.count("qk_nope_head_dim"), fields.count("qk_rope_head_dim")
    values, narrow = fields.count("v_head_dim"), fields.maybe("q_lora_rank")
    queries = heads * (plain + rotary)
    weights = narrow * (hidden + queries) if narrow else hidden * queries
    weights += hidden * (latent + rotary) + latent * heads * (plain + values)
    weights += heads * values * hidden
    return weights, 2.0 * heads * (plain + rotary + values)


def _chosen_positions(fields: Fields) -> float:
    """Sparse attention of one layer: to the tokens that its index chose, keys and values folded."""
    heads, latent = fields.count("num_attention_heads"), fields.count("kv_lora_rank")
    return (
        2.0 * heads * (2 * latent + fields.count("qk_rope_head_dim")) * fields.count("index_topk")
    )


def _index(fields: Fields, hidden: int) -> tuple[int, float]:
    """Weights of an index, and operations for each token before, which all are looked at."""
    heads, width = fields.count("index_n_heads"), fields.count("index_head_dim")
    queries = (fields.maybe("q_lora_rank") or hidden) * heads * width
    return queries + hidden * (width + heads), 2.0 * heads * width


def _state(fields: Fields, hidden: int) -> int:
    """Weights of a layer of linear attention or Mamba-2, whose state costs little beside them."""
    kind = fields.text("model_type")
    if kind == "kimi_linear":
        inner = Fields(f"{fields.where} linear_attn_config", fields.values["linear_attn_config"])
        return 5 * hidden * inner.count("num_heads") * inner.count("head_dim")
    if kind in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"):
        keys = fields.count("linear_num_key_heads") * fields.count("linear_key_head_dim")
        heads = fields.count("linear_num_value_heads")
        values = heads * fields.count("linear_value_head_dim")
        return hidden * (2 * keys + 2 * values + 2 * heads) + values * hidden
    names = ("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state")
    if kind == "nemotron_h":
        names = ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size")
    heads, width, groups, state = (fields.count(name) for name in names)
    inner_size = heads * width
    return hidden * (2 * inner_size + 2 * groups * state + heads) + inner_size * hidden


def _feed_forward(fields: Fields, hidden: int, mixers: int) -> int:
    """Of all layers together: dense ones, and the experts that a token is sent through."""
    kind = fields.text("model_type")
    special = _SPECIAL.get(kind)
    if special is not None:
        return special(fields, hidden, mixers)
    chosen = _chosen(fields)
    if not chosen:
        return 3 * hidden * fields.count("intermediate_size") * mixers
    expert = fields.maybe("moe_intermediate_size") or fields.count("intermediate_size")
    through = chosen * expert + _shared(fields, expert)
    dense = _dense_layers(fields)
    wide = fields.count("intermediate_size") if dense else 0
    return 3 * hidden * (through * (mixers - dense) + wide * dense)


def _chosen(fields: Fields) -> int:
    for name in ("num_experts_per_tok", "num_experts_per_token", "top_k_experts"):
        if found := fields.maybe(name):
            return found
    return 0


def _shared(fields: Fields, expert: int) -> int:
    """How wide the experts are that every token passes."""
    for name in (
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
        "moe_shared_expert_intermediate_size",
    ):
        if found := fields.maybe(name):
            return found
    number = fields.maybe("n_shared_experts") or fields.maybe("num_shared_experts") or 0
    return number * expert


def _dense_layers(fields: Fields) -> int:
    each = fields.values.get("moe_layer_freq")
    if isinstance(each, list):
        return sum(not value for value in each)
    return fields.maybe("first_k_dense_replace") or 0


def _llama4(fields: Fields, hidden: int, mixers: int) -> int:
    """Experts in each `interleave_moe_layer_step`th layer, one of them for all tokens."""
    sparse = mixers // fields.count("interleave_moe_layer_step")
    expert = fields.count("intermediate_size") * (fields.count("num_experts_per_tok") + 1)
    dense = fields.count("intermediate_size_mlp") if sparse < mixers else 0
    return 3 * hidden * (expert * sparse + dense * (mixers - sparse))


def _nemotron_h(fields: Fields, hidden: int, _mixers: int) -> int:
    """Layers of their own: E with experts, - dense; neither has a gate."""
    pattern = fields.sequence("hybrid_override_pattern", fields.layers())
    total = 0
    if sparse := pattern.count("E"):
        expert = fields.count("moe_intermediate_size")
        total += sparse * (fields.count("num_experts_per_tok") * expert + _shared(fields, expert))
    if dense := pattern.count("-"):
        total += dense * fields.count("intermediate_size")
    return 2 * hidden * total


def _granite_hybrid(fields: Fields, hidden: int, mixers: int) -> int:
    """A shared part in every layer, and experts where there are any."""
    through = fields.count("shared_intermediate_size")
    if chosen := _chosen(fields):
        through += chosen * fields.count("intermediate_size")
    return 3 * hidden * through * mixers


def _kimi_linear(fields: Fields, hidden: int, mixers: int) -> int:
    """Experts as usual; some have a width between the model's and their own."""
    if fields.maybe("routed_expert_hidden_size"):
        return _unknown(fields, hidden, mixers)
    dense, expert = _dense_layers(fields), fields.count("moe_intermediate_size")
    sparse = expert * _chosen(fields) + _shared(fields, expert)
    wide = fields.count("intermediate_size")
    return 3 * hidden * (sparse * (mixers - dense) + wide * dense)


def _gemma4(fields: Fields, hidden: int, mixers: int) -> int:
    """A dense part and experts side by side, where there are any."""
    through = fields.count("intermediate_size")
    if chosen := _chosen(fields):
        through += chosen * fields.count("moe_intermediate_size")
    return 3 * hidden * through * mixers


def _unknown(fields: Fields, _hidden: int, _mixers: int) -> int:
    raise ConfigError(
        f"{fields.where}: how wide its experts or layers are cannot be told from it: say "
        "--prefill-tokens-per-second",
        "routed_expert_hidden_size",
    )


_SPECIAL: dict[str, Callable[[Fields, int, int], int]] = {
    "llama4": _llama4,
    "llama4_text": _llama4,
    "nemotron_h": _nemotron_h,
    "granitemoehybrid": _granite_hybrid,
    "kimi_linear": _kimi_linear,
    "gemma4_text": _gemma4,
    "nemotron-nas": _unknown,
}
