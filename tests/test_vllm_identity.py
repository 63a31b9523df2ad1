"""A vLLM's namespace from its configuration, with everything that only an engine knows made up."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keepwarm
import pytest
from keepwarm.connectors.vllm import facts, weights
from keepwarm.connectors.vllm.identity import Mode, agree, namespace_fields

Made = SimpleNamespace


def spec(**changes: Any) -> Made:
    """Of attention: 32 tokens, 2 heads of 64, fp32."""
    usual = {
        "block_size": 32,
        "num_kv_heads": 2,
        "head_size": 64,
        "head_size_v": 64,
        "dtype": "torch.float32",
        "page_size_bytes": 32 << 10,
        "kv_quant_mode": "none",
        "sliding_window": None,
    }
    return Made(**usual | changes)


class Engine:
    """What a connector is given by vLLM, and the settings; change any of it."""

    def __init__(self, folder: Path) -> None:
        self.settings = Made(tenant="default", weights=None)
        self.model = Made(
            model=str(folder),
            revision=None,
            hf_config=Made(architectures=["LlamaForCausalLM"]),
            hf_text_config=Made(num_hidden_layers=4, rope_parameters={"rope_type": "default"}),
            hf_config_path=None,
            hf_overrides={},
            trust_remote_code=False,
            quantization=None,
            quantization_config=None,
            dtype="torch.float32",
            disable_sliding_window=False,
            multimodal_config=None,
            max_model_len=8192,
        )
        self.cache = Made(
            cache_dtype="auto",
            kv_cache_layout="LBHNC",
            kv_cache_dtype_skip_layers=[],
            prefix_caching_hash_algo="sha256",
            enable_prefix_caching=True,
        )
        self.parallel = Made(
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            prefill_context_parallel_size=1,
            decode_context_parallel_size=1,
            world_size=1,
        )
        self.load = Made(load_format="auto", model_loader_extra_config={}, download_dir=None)
        self.vllm = Made(
            model_config=self.model,
            cache_config=self.cache,
            parallel_config=self.parallel,
            load_config=self.load,
            speculative_config=None,
            lora_config=None,
            additional_config={},
        )
        self.groups = [Made(layer_names=[f"l{i}" for i in range(4)], kv_cache_spec=spec())]
        self.kv = Made(kv_cache_groups=self.groups, kv_cache_layout=None, kv_tp_replicas=1)

    def fields(self, mode: Mode = "direct") -> dict[str, Any]:
        given: Any = (self.vllm, self.kv, self.settings)
        return dict(namespace_fields(*given, mode=mode, parts=1))


def _first(answer: Any, *asked: Any) -> Any:
    del asked
    return answer


def _first_groups_tokens(_: Any, kv: Any) -> Any:
    return kv.kv_cache_groups[0].kv_cache_spec.block_size


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    for name, answer in {
        "engine_version": "0.32.0",
        "attention_backends": ["CPU_ATTN"],
        "instruction_sets": ["x86 avx512 vec"],
        "offload_blocks": (4, 32),
    }.items():
        monkeypatch.setattr(facts, name, partial(_first, answer))
    monkeypatch.setattr(facts, "hash_tokens", _first_groups_tokens)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return Engine(folder)


def test_the_fields_make_a_namespace(engine: Engine) -> None:
    for mode in ("direct", "tier"):
        fields: Any = engine.fields(mode)
        names = keepwarm.Namespace(**fields)
        assert len(names.encoding) < 4096
    assert engine.fields()["run_blocks"] == (32 << 20) // (4 * (32 << 10))
    assert engine.fields("tier")["block_tokens"] == 128
    assert engine.fields("tier")["run_blocks"] == engine.fields()["run_blocks"] // 4


def change(path: str, value: Any) -> Callable[[Engine], None]:
    def apply(engine: Engine) -> None:
        *way, last = path.split(".")
        holder: Any = engine
        for each in way:
            holder = holder[int(each)] if each.isdigit() else getattr(holder, each)
        setattr(holder, last, value)

    return apply


CHANGES: list[tuple[str, Any, set[str]]] = [
    ("settings.tenant", "other", {"tenant"}),
    ("settings.weights", "v2", {"weights"}),
    ("model.dtype", "torch.bfloat16", {"quantisation"}),
    ("model.quantization", "fp8", {"quantisation"}),
    ("model.hf_overrides", {"rope_theta": 1}, {"quantisation"}),
    ("model.disable_sliding_window", True, {"kv_options"}),
    ("model.hf_config.architectures", ["Other"], {"model"}),
    ("load.load_format", "dummy", {"load", "weights"}),
    ("cache.cache_dtype", "fp8", {"kv_dtype"}),
    ("cache.kv_cache_layout", "LBNHC", {"layout"}),
    ("cache.kv_cache_dtype_skip_layers", ["0"], {"kv_scales"}),
    ("cache.prefix_caching_hash_algo", "sha256_cbor", {"kv_options"}),
    ("parallel.tensor_parallel_size", 2, {"parallel"}),
    ("parallel.world_size", 2, {"run_blocks"}),
    ("vllm.lora_config", object(), {"kv_options"}),
    ("vllm.additional_config", {"a": 1}, {"kv_options"}),
    ("kv.kv_tp_replicas", 2, {"parallel"}),
    ("groups.0.layer_names", ["l0", "l1", "l2", "l9"], {"layers"}),
    ("groups.0.kv_cache_spec.block_size", 64, {"block_tokens", "kv_options"}),
    ("groups.0.kv_cache_spec.num_kv_heads", 4, {"kv_heads", "kv_options"}),
    ("groups.0.kv_cache_spec.head_size", 32, {"head_dim", "kv_options"}),
    ("groups.0.kv_cache_spec.dtype", "torch.bfloat16", {"kv_dtype", "kv_options"}),
    ("groups.0.kv_cache_spec.kv_quant_mode", "int8", {"kv_scales", "kv_options"}),
    ("groups.0.kv_cache_spec.sliding_window", 64, {"kv_options"}),
    ("groups.0.kv_cache_spec.page_size_bytes", 64 << 10, {"run_blocks", "kv_options"}),
]


@pytest.mark.parametrize(("path", "value", "differ"), CHANGES, ids=[each[0] for each in CHANGES])
def test_what_changes_the_bytes_changes_the_fields_that_say_so(
    engine: Engine, path: str, value: Any, differ: set[str]
) -> None:
    before = engine.fields()
    change(path, value)(engine)
    after = engine.fields()
    assert {name for name in before if before[name] != after[name]} == differ


def test_where_a_model_lies_and_how_long_prompts_may_be_say_nothing(
    engine: Engine, tmp_path: Path
) -> None:
    before = engine.fields()
    (tmp_path / "model").rename(tmp_path / "moved")
    engine.model.model = str(tmp_path / "moved")
    engine.model.max_model_len = 100
    assert engine.fields() == before


def test_how_long_prompts_may_be_counts_where_positions_depend_on_it(engine: Engine) -> None:
    engine.model.hf_text_config.rope_parameters = {"rope_type": "longrope"}
    before = engine.fields()
    engine.model.max_model_len = 100
    assert engine.fields() != before


def test_files_that_configure_a_model_count(engine: Engine, tmp_path: Path) -> None:
    before = engine.fields()
    (tmp_path / "model" / "config.json").write_text('{"rope_theta": 1}')
    after = engine.fields()
    assert {name for name in before if before[name] != after[name]} == {"model"}


def test_a_draft_models_weights_count(engine: Engine, tmp_path: Path) -> None:
    before = engine.fields()
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "model.safetensors").write_bytes(b"draft")
    engine.vllm.speculative_config = Made(
        method="eagle", draft_model_config=Made(model=str(draft), revision=None)
    )
    assert engine.fields()["weights"] == before["weights"] + "+" + engine.fields()["weights"][72:]
    assert engine.fields()["weights"].count("sha256:") == 2


BROKEN: list[tuple[str, Any, str]] = [
    ("kv.kv_cache_groups", [], "layers"),
    ("groups.0.kv_cache_spec", Made(), "kv_dtype"),
    ("cache.kv_cache_layout", "XYZ", "layout"),
    ("cache.kv_cache_layout", None, "layout"),
    ("cache.prefix_caching_hash_algo", "xxhash", "kv_options"),
    ("vllm.additional_config", {"a": object()}, "kv_options"),
    ("vllm.parallel_config", Made(), "layers"),
    ("vllm.load_config", Made(), "load"),
    ("vllm.model_config", Made(), "kv_options"),
    ("model.hf_overrides", lambda config: config, "quantisation"),
    ("model.hf_config", Made(architectures=None), "model"),
    ("model.hf_config", Made(architectures=[]), "model"),
    ("model.model", "s3://bucket/model", "model"),
    ("model.hf_config_path", "/", "model"),
    ("model.model_weights", "s3://bucket/model", "weights"),
    ("load.load_format", "tensorizer", "weights"),
]


@pytest.mark.parametrize(
    ("path", "value", "field"), BROKEN, ids=[f"{each[0]}-{each[2]}" for each in BROKEN]
)
def test_what_cannot_be_determined_is_an_error_that_names_the_field(
    engine: Engine, path: str, value: Any, field: str
) -> None:
    change(path, value)(engine)
    with pytest.raises(keepwarm.IdentityError, match=f"^{field} cannot be determined") as refused:
        engine.fields()
    assert refused.value.field == field


def test_names_of_blocks_that_need_not_tell_contents_apart_are_refused(engine: Engine) -> None:
    engine.cache.enable_prefix_caching = False
    for mode in ("direct", "tier"):
        with pytest.raises(keepwarm.IdentityError, match="prefix caching is off") as refused:
            engine.fields(mode)
        assert refused.value.field == "kv_options"


FACTS = {
    "engine": "engine_version",
    "attention_backend": "attention_backends",
    "isa": "instruction_sets",
    "block_tokens": "hash_tokens",
}


@pytest.mark.parametrize("field", FACTS)
@pytest.mark.parametrize("answer", ["raises", "nothing"])
def test_what_an_engine_does_not_say_is_an_error_that_names_the_field(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, field: str, answer: str
) -> None:
    def say(*given: Any) -> Any:
        del given
        if answer == "raises":
            raise ImportError("another vLLM")
        return None if field == "block_tokens" else []

    monkeypatch.setattr(facts, FACTS[field], say)
    with pytest.raises(keepwarm.IdentityError, match=f"^{field} cannot be determined") as refused:
        engine.fields()
    assert refused.value.field == field


@pytest.mark.parametrize("sample", [False, True])
def test_files_that_cannot_be_read_are_named_and_not_vllms_fault(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, sample: bool
) -> None:
    def refuse(file: Path) -> str:
        raise PermissionError(13, "Permission denied", str(file))

    if sample:
        engine.settings.weights = "sample"
    real = weights._read
    for name in ("_read", "_sampled"):
        monkeypatch.setattr(
            weights, name, lambda file: (real if file.suffix == ".json" else refuse)(file)
        )
    with pytest.raises(keepwarm.IdentityError, match=r"safetensors.*readable") as refused:
        engine.fields()
    assert refused.value.field == "weights"


def test_a_sample_is_shown(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    engine.settings.weights = "sample"
    assert str(engine.fields()["weights"]).startswith("sampled:")
    assert "named by samples" in caplog.text


def test_a_worker_keeps_each_layers_spec_and_a_scheduler_one(engine: Engine) -> None:
    worker = copy.deepcopy(engine)
    layers = {name: spec() for name in worker.groups[0].layer_names}
    worker.groups[0].kv_cache_spec = spec(kv_cache_specs=layers, page_size_bytes=4 * (32 << 10))
    assert agree(engine.fields(), worker.fields()) is None


def test_a_disagreement_names_the_field(engine: Engine) -> None:
    scheduler = engine.fields()
    engine.parallel.tensor_parallel_size = 2
    error = agree(scheduler, engine.fields())
    assert error is not None
    assert error.field == "parallel"
    assert "in the scheduler" in str(error)
    assert agree(scheduler, {}) is not None


def test_our_lines_go_where_vllms_go_unless_that_was_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root, ours, vllm = (logging.Logger(name) for name in ("root", "keepwarm", "vllm"))
    ours.parent = root
    loggers = {"keepwarm": ours, "vllm": vllm}
    monkeypatch.setattr(
        facts, "logging", Made(getLogger=loggers.__getitem__, NOTSET=logging.NOTSET)
    )
    facts.show_log()
    assert not ours.handlers
    vllm.addHandler(logging.NullHandler())
    vllm.setLevel(logging.INFO)
    facts.show_log()
    facts.show_log()
    assert ours.handlers == vllm.handlers
    assert ours.level == logging.INFO
    ours.handlers.clear()
    root.addHandler(logging.NullHandler())
    facts.show_log()
    assert not ours.handlers


def test_a_tier_finds_the_configuration_of_the_engine_that_makes_it(engine: Engine) -> None:
    engine.vllm.kv_transfer_config = Made(engine_id="e1")

    def connector(vllm_config: Any, kv_cache_config: Any, wanted: str) -> Any:
        assert vllm_config is not kv_cache_config
        return (lambda: facts.config_of(Made(engine_id=wanted)))()

    assert connector(engine.vllm, engine.kv, "e1") == (engine.vllm, engine.kv)
    with pytest.raises(keepwarm.IdentityError, match=r"^model cannot be determined"):
        connector(engine.vllm, engine.kv, "e2")
