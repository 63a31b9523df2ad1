"""KV geometry: hand-computed values, every entry of the table, what a config.json leaves out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from keepwarm.errors import ConfigError
from keepwarm.workload.geometry import from_config, geometry, models

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "torch_dtype": "bfloat16",
}
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,  # not what MLA keeps
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("model", "bytes_per_token"),
    [
        ("Llama-3-70B", 2 * 80 * 8 * 128 * 2),  # 327,680
        ("meta-llama/Llama-3.3-70B-Instruct", 327_680),
        ("meta-llama/Meta-Llama-3-8B-Instruct", 2 * 32 * 8 * 128 * 2),
        ("deepseek-ai/DeepSeek-V3", (512 + 64) * 61 * 2),  # 70,272
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", (512 + 64) * 27 * 2),
        ("deepseek-ai/DeepSeek-V3.2", (512 + 64) * 61 * 2 + 61 * (128 + 4)),
        ("moonshotai/Kimi-K2-Instruct", 70_272),
        ("Qwen/Qwen3-32B", 2 * 64 * 8 * 128 * 2),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", 2 * 48 * 4 * 128 * 2),
        ("Qwen/Qwen2.5-7B-Instruct", 2 * 28 * 4 * 128 * 2),
        ("Qwen/Qwen3-Next-80B-A3B-Thinking", 2 * 12 * 2 * 256 * 2),
        ("mistralai/Mistral-7B-Instruct-v0.3", 2 * 32 * 8 * 128 * 2),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 2 * 32 * 8 * 128 * 2),
        ("openai/gpt-oss-120b", 2 * 18 * 8 * 64 * 2),
        ("google/gemma-3-27b-it", 2 * 10 * 16 * 128 * 2),
        ("zai-org/GLM-4.5", 2 * 92 * 8 * 128 * 2),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 2 * 30 * 3 * 64 * 2),
        ("ibm-granite/granite-4.0-h-small", 2 * 4 * 8 * 128 * 2),
    ],
)
def test_bytes_per_token_by_hand(model: str, bytes_per_token: int) -> None:
    assert geometry(model).bytes_per_token() == bytes_per_token


def test_every_entry_of_the_table_parses_and_names_its_source() -> None:
    every = models()
    assert len(every) > 100
    for name, source in every.items():
        found = geometry(name)
        assert found.bytes_per_token() > 0, name
        assert "/" in source, name
        assert found.session_bytes(1000) >= 1000 * found.bytes_per_token(), name


@pytest.mark.parametrize(
    ("model", "billions"),  # parameters a token passes, as published, less embeddings
    [
        ("Llama-3.1-8B", 8.03 - 2 * 0.525),
        ("Llama-3.1-70B", 70.6 - 2 * 1.05),
        ("Llama-3.1-405B", 405.8 - 2 * 2.1),
        ("DeepSeek-V3", 37 - 0.93),
        ("DeepSeek-V2", 21 - 0.5),
        ("Qwen3-32B", 31.2),  # its card: 31.2B without embeddings
        ("Qwen3-14B", 13.2),
        ("Qwen2.5-7B", 6.53),
        ("Mixtral-8x7B", 12.9 - 0.26),
        ("Qwen3-235B-A22B", 22 - 1.2),
        ("Kimi-K2", 32 - 1.2),
        ("GLM-4.5", 32),
        ("Qwen3-Next-80B-A3B", 3.2),
    ],
)
def test_weights_that_a_token_passes_are_as_published(model: str, billions: float) -> None:
    work = geometry(model).work
    assert work is not None
    assert work.weights / 1e9 == pytest.approx(billions, rel=0.04)


def test_attention_grows_with_the_position_as_by_hand() -> None:
    work = from_config(LLAMA, "test").work
    assert work is not None
    # 32 layers of 32 heads of 128: a product with each key, and a sum of each value.
    assert work.flops_per_position == 32 * 2 * 32 * (128 + 128)
    assert work.flops(0, 1) == work.flops_per_token
    assert work.flops(10, 3) == 3 * work.flops_per_token + (10 + 11 + 12) * work.flops_per_position


def test_sparse_attention_looks_at_all_and_attends_to_few() -> None:
    """DeepSeek-V3.2 is V3 with an index: 64 heads of 128 that look at every token before."""
    dense, sparse = geometry("DeepSeek-V3").work, geometry("DeepSeek-V3.2").work
    assert dense is not None
    assert sparse is not None
    assert dense.flops_per_position == 61 * 2 * 128 * (128 + 64 + 128)
    assert sparse.flops_per_position == 61 * 2 * 64 * 128
    index = 1536 * 64 * 128 + 7168 * (128 + 64)
    assert sparse.weights == dense.weights + 61 * index
    chosen = 61 * 2 * 128 * (2 * 512 + 64) * 2048
    assert sparse.flops_per_token == 2 * sparse.weights + chosen
    # So a prompt of 100,000 tokens takes about half of what attending to all would.
    assert sparse.flops(0, 100_000) == pytest.approx(0.49 * dense.flops(0, 100_000), rel=0.01)


def test_layers_with_a_window_forget() -> None:
    found = geometry("gpt-oss-20b")
    layer = 2 * 8 * 64 * 2
    assert found.bytes_per_token() == found.window_bytes_per_token() == 12 * layer
    assert found.session_bytes(100) == 24 * layer * 100
    assert found.session_bytes(10_000) == 12 * layer * (10_000 + 128)
    assert found.stored_bytes_per_token(16) == 24 * layer


def test_states_are_kept_once_a_sequence_and_apart_in_a_memory() -> None:
    found = geometry("Qwen3-Next-80B-A3B")
    state = 32 * 128 * 128 * 2 + 3 * (2 * 16 * 128 + 32 * 128) * 2
    assert found.state_bytes() == 36 * state
    assert found.session_bytes(1000) == 36 * state + 1000 * found.bytes_per_token()
    apart = -(-state // (2 * 2 * 256 * 2))  # as large as a layer's state in attention's bytes
    assert found.snapshot_tokens(16) == apart
    assert found.snapshot_tokens(1024) == 1024
    assert found.stored_bytes_per_token(16) == found.bytes_per_token() + 36 * state / apart


def test_nested_text_config_and_float32_states() -> None:
    found = geometry("Qwen3.5-27B")
    heads = 48 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 48 * 128) * 2
    assert found.state_bytes() == 48 * heads
    nested = {"model_type": "outer", "torch_dtype": "bfloat16", "text_config": LLAMA}
    assert from_config(nested, "x").bytes_per_token() == 131_072


def test_gemma4_has_other_heads_where_it_sees_everything() -> None:
    found = geometry("Gemma-4-26B-A4B")
    assert found.bytes_per_token() == 5 * 2 * 2 * 512 * 2
    assert found.window_bytes_per_token() == 25 * 2 * 8 * 256 * 2


def test_llama4_sees_chunks_but_in_every_fourth_layer() -> None:
    found = geometry("meta-llama/Llama-4-Scout-17B-16E-Instruct")
    layer = 2 * 8 * 128 * 2
    assert (found.bytes_per_token(), found.window_bytes_per_token()) == (12 * layer, 36 * layer)
    assert found.session_bytes(20_000) == 12 * layer * 20_000 + 36 * layer * 8192


def test_qwen_uses_its_window_only_if_told_so() -> None:
    qwen = LLAMA | {"model_type": "qwen2", "sliding_window": 4096, "max_window_layers": 28}
    assert from_config(qwen | {"use_sliding_window": False}, "x").bytes_per_token() == 131_072
    used = from_config(qwen | {"use_sliding_window": True}, "x")
    assert used.bytes_per_token() == 28 * 4096
    assert used.window_bytes_per_token() == 4 * 4096


def test_heads_of_their_own_in_each_layer() -> None:
    blocks = [
        {"attention": {"n_heads_in_group": 4, "no_op": False}},
        {"attention": {"n_heads_in_group": 8, "no_op": False}},
        {"attention": {"n_heads_in_group": None, "no_op": True}},
    ]
    config = LLAMA | {
        "model_type": "nemotron-nas",
        "num_hidden_layers": 3,
        "num_key_value_heads": None,
        "block_configs": blocks,
    }
    found = from_config(config, "x")
    assert found.bytes_per_token() == 2 * (8 + 4) * 128 * 2
    assert found.work is None
    assert "--prefill-tokens-per-second" in found.work_missing


@pytest.mark.parametrize(
    ("more", "asked", "bytes_per_token", "called"),
    [
        ({}, "fp8", 65_536, "fp8"),
        ({"quantization_config": {"kv_cache_quant_algo": "FP8"}}, "", 65_536, "fp8"),
        (
            {"quantization_config": {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}},
            "",
            65_536,
            "fp8",
        ),
        ({"quantization_config": {"kv_cache_quant_algo": "FP8"}}, "float16", 131_072, "float16"),
        ({"torch_dtype": None, "dtype": "float32"}, "", 262_144, "float32"),
    ],
)
def test_what_the_cache_is_made_of(
    more: Mapping[str, Any], asked: str, bytes_per_token: int, called: str
) -> None:
    found = from_config({**LLAMA, **more}, "x", asked)
    assert (found.bytes_per_token(), found.kv_dtype) == (bytes_per_token, called)


@pytest.mark.parametrize("field", ["num_hidden_layers", "num_key_value_heads", "model_type"])
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(ConfigError, match=field) as raised:
        from_config({k: v for k, v in LLAMA.items() if k != field}, "config.json")
    assert raised.value.setting == field


@pytest.mark.parametrize("field", ["kv_lora_rank", "qk_rope_head_dim"])
def test_a_missing_rank_is_named(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        from_config({k: v for k, v in DEEPSEEK.items() if k != field}, "config.json")


def test_without_a_dtype_the_cache_is_not_guessed() -> None:
    bare = {k: v for k, v in LLAMA.items() if k != "torch_dtype"}
    with pytest.raises(ConfigError, match=r"torch_dtype.*--kv-dtype"):
        from_config(bare, "config.json")
    assert from_config(bare, "config.json", "bfloat16").bytes_per_token() == 131_072


@pytest.mark.parametrize("kind", ["deepseek_v4", "rwkv7", "t5"])
def test_an_unknown_architecture_is_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"model_type '{kind}'"):
        from_config(LLAMA | {"model_type": kind}, "config.json")


@pytest.mark.parametrize("value", [-1, True, "8", 2.5, 1 << 60])
def test_values_that_cannot_be_are_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="num_key_value_heads"):
        from_config(LLAMA | {"num_key_value_heads": value}, "config.json")


def test_a_file_a_folder_and_what_is_neither(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK))
    assert geometry(str(tmp_path)).bytes_per_token() == 70_272
    assert geometry(str(tmp_path / "config.json")).source == str(tmp_path / "config.json")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        geometry(str(tmp_path))
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ConfigError, match="not a JSON object"):
        geometry(str(tmp_path))
    with pytest.raises(ConfigError, match="no such file"):
        geometry("missing/config.json")
    with pytest.raises(ConfigError, match=r"not in the table.*Llama-3-70B"):
        geometry("llama-99")
