"""The namespace of a running vLLM: everything that makes its blocks another engine's too.

A field that cannot be determined is an `IdentityError` at start that names it, never a default: a
wrong guess would hand one model's bytes to another. docs/identity.md says what each field holds.

    vLLM's configuration ──┐
    its KV cache's specs ──┼─► namespace_fields ──► scheduler ─┐
    the weights' files   ──┘                  └──► each worker ─┴─► agree
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast

from keepwarm.connectors.vllm import facts, weights
from keepwarm.errors import IdentityError
from keepwarm.identity import NamespaceFields, Value

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

LOG = logging.getLogger("keepwarm.identity")

Mode: TypeAlias = Literal["direct", "tier"]
# A new number where the same bytes would be kept in another way.
VERSIONS: Mapping[Mode, int] = {"direct": 1, "tier": 1}
RUN_BYTES = 32 << 20
RUN_BLOCKS_MAX = 1 << 20
SAMPLE = "sample"

_LAYOUTS = frozenset({"LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"})
# Rotary embeddings that are the same whatever the longest prompt may be.
_FIXED_ROPE = frozenset({"", "default", "linear", "llama3", "yarn", "mrope", "proportional"})


class IdentitySettings(Protocol):
    """What identity needs of a connector's settings."""

    @property
    def tenant(self) -> str: ...
    @property
    def weights(self) -> str | None: ...


def namespace_fields(
    vllm_config: VllmConfig,
    kv_cache_config: KVCacheConfig,
    settings: IdentitySettings,
    *,
    mode: Mode,
    parts: int,
) -> NamespaceFields:
    """The fields of this engine's namespace, from its scheduler or from a worker.

    Reads weights that no cache knows, which takes as long as their disk does.
    """
    facts.show_log()
    engine = _Engine(vllm_config, kv_cache_config, settings, mode)
    _check_names(engine)
    fields: dict[str, Value] = {"tenant": settings.tenant, "parts": parts}
    for name, determine in _FIELDS.items():
        fields[name] = _determined(name, determine, engine)
    return cast(NamespaceFields, fields)


def _check_names(engine: _Engine) -> None:
    """Refuses an engine whose block names do not say what is in the blocks.

    With a connector vLLM names blocks even where prefix caching is off. But then it may name an
    image by a counter, which is the same in each process, and it is off by itself for models that
    pool over tokens which would not be there.
    """
    if not engine.config.cache_config.enable_prefix_caching:
        raise IdentityError(
            "kv_options: prefix caching is off, and then vLLM's names of blocks need not tell "
            "contents apart: start without --no-enable-prefix-caching, or, where vLLM has it off "
            "for a kind of model, without a connector",
            "kv_options",
        )


def agree(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> IdentityError | None:
    """None where a scheduler (`ours`) and a worker name the same namespace, else what differs."""
    for name in sorted({*ours, *theirs}):
        here, there = ours.get(name), theirs.get(name)
        if json.dumps(here, sort_keys=True) != json.dumps(there, sort_keys=True):
            return IdentityError(
                f"{name} is {here!r} in the scheduler and {there!r} in a worker: both must run the "
                "same vLLM with the same files and settings",
                name,
            )
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class _Engine:
    config: Any
    cache: Any
    settings: IdentitySettings
    mode: Mode

    @property
    def groups(self) -> list[Any]:
        found = list(self.cache.kv_cache_groups)
        if not found:
            raise LookupError("the engine keeps no KV cache")
        return found

    @property
    def specs(self) -> list[Any]:
        """One for each group. A worker knows each layer's, a scheduler the first of them."""
        return [
            next(iter(spec.kv_cache_specs.values())) if hasattr(spec, "kv_cache_specs") else spec
            for spec in (group.kv_cache_spec for group in self.groups)
        ]


def _determined(name: str, determine: Callable[[_Engine], Value], engine: _Engine) -> Value:
    try:
        value = determine(engine)
    except IdentityError:
        raise
    except OSError as error:
        raise IdentityError(
            f"{name} cannot be determined: {error}; its files must be whole and readable for the "
            "engine's user",
            name,
        ) from error
    except Exception as error:
        why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise IdentityError(
            f"{name} cannot be determined from this vLLM ({why}); use a version that Keepwarm's "
            "docs/vllm.md names, or report it",
            name,
        ) from error
    if value is None or value in ("", []):
        raise IdentityError(f"{name} cannot be determined: this vLLM says nothing of it", name)
    return value


def _model(engine: _Engine) -> Value:
    """The architecture, and the content of what configures it; paths and names say nothing."""
    model = engine.config.model_config
    architecture = "+".join(model.hf_config.architectures)
    if not architecture:
        raise LookupError("its configuration names no architecture")
    folder = facts.model_folder(str(model.hf_config_path or model.model), model.revision, None)
    files = weights.config_files(folder, code=bool(model.trust_remote_code))
    if not files:
        return architecture
    return f"{architecture} {_short(weights.content_name(files, folder))}"


def _weights(engine: _Engine) -> Value:
    given, model, load = (
        engine.settings.weights,
        engine.config.model_config,
        engine.config.load_config,
    )
    if given is not None and given != SAMPLE:
        return f"given:{given}"
    if load.load_format == "dummy":
        return "dummy"
    if given == SAMPLE:
        LOG.warning(
            "weights are named by samples of their files: two models that differ elsewhere look "
            "the same and would be given each other's blocks"
        )
    names = [_content(model, load, sample=given == SAMPLE)]
    draft = getattr(engine.config.speculative_config, "draft_model_config", None)
    if draft is not None and str(draft.model) != str(model.model):
        names.append(_content(draft, load, sample=given == SAMPLE))
    return "+".join(names)


def _content(model: Any, load: Any, *, sample: bool) -> str:
    try:
        if getattr(model, "model_weights", None):
            raise LookupError(f"those of {model.model_weights} are streamed")
        folder = facts.model_folder(str(model.model), model.revision, load.download_dir)
    except Exception as error:
        raise IdentityError(
            f"weights cannot be determined: {error}; give the setting `weights` a name that "
            "changes when the weights do",
            "weights",
        ) from error
    files = weights.weight_files(folder, str(load.load_format))
    return weights.content_name(files, folder, sample=sample)


def _load(engine: _Engine) -> Value:
    load = engine.config.load_config
    return [str(load.load_format), _digest(load.model_loader_extra_config)]


def _quantisation(engine: _Engine) -> Value:
    model = engine.config.model_config
    if callable(model.hf_overrides):
        raise LookupError("hf_overrides is a function, whose effect has no name; give a dictionary")
    return {
        "method": str(model.quantization),
        "options": _digest(getattr(model, "quantization_config", None)),
        "overrides": _digest(model.hf_overrides),
        "dtype": _dtype(model.dtype),
    }


def _kv_dtype(engine: _Engine) -> Value:
    kinds = sorted({_kind_of_element(spec) for spec in engine.specs})
    return f"{engine.config.cache_config.cache_dtype}={'+'.join(kinds)}"


def _kind_of_element(spec: Any) -> str:
    """Attention has one type, a state several."""
    if hasattr(spec, "dtypes"):
        return ",".join(_dtype(each) for each in spec.dtypes)
    return _dtype(spec.dtype)


def _kv_scales(engine: _Engine) -> Value:
    modes = sorted({str(getattr(spec, "kv_quant_mode", "none")) for spec in engine.specs})
    cache = engine.config.cache_config
    return {
        "modes": modes,
        "skipped": [str(each) for each in cache.kv_cache_dtype_skip_layers],
        "calculated": bool(getattr(cache, "calculate_kv_scales", False)),
    }


def _layers(engine: _Engine) -> Value:
    """Of each group its kind, its number of layers, and which ones."""
    if engine.config.parallel_config.pipeline_parallel_size > 1:
        # Each stage has layers of its own: what all agree on is how many there are.
        total = int(engine.config.model_config.hf_text_config.num_hidden_layers)
        return [[type(spec).__name__ for spec in engine.specs], total]
    return [
        [type(spec).__name__, len(group.layer_names), _short(_digest(list(group.layer_names)))]
        for group, spec in zip(engine.groups, engine.specs, strict=True)
    ]


def _kv_heads(engine: _Engine) -> Value:
    return [int(getattr(spec, "num_kv_heads", 0)) for spec in engine.specs]


def _head_dim(engine: _Engine) -> Value:
    return [
        [int(getattr(spec, "head_size", 0)), int(getattr(spec, "head_size_v", 0) or 0)]
        for spec in engine.specs
    ]


def _layout(engine: _Engine) -> Value:
    name = engine.config.cache_config.kv_cache_layout or engine.cache.kv_cache_layout
    name = {"NHD": "LBNHC", "HND": "LBHNC"}.get(name, name)
    if name not in _LAYOUTS:
        raise LookupError(f"the layout is {name!r}, known are {', '.join(sorted(_LAYOUTS))}")
    return f"{name} opaque"


def _engine_name(_: _Engine) -> Value:
    version = facts.engine_version()
    return f"vllm {version}" if version else ""


def _attention_backend(engine: _Engine) -> Value:
    return "+".join(facts.attention_backends(engine.config))


def _isa(engine: _Engine) -> Value:
    return "+".join(facts.instruction_sets(engine.config, engine.specs))


def _block_tokens(engine: _Engine) -> Value:
    """Tokens of what has a key of its own."""
    if engine.mode == "tier":
        blocks, tokens = facts.offload_blocks(engine.config, engine.cache)
        return blocks * tokens
    return facts.hash_tokens(engine.config, engine.cache)


def _kv_options(engine: _Engine) -> Value:
    config, cache = engine.config, engine.config.cache_config
    algorithm, seed = str(cache.prefix_caching_hash_algo), facts.hash_seed()
    if algorithm.startswith("xxhash") and not seed:
        raise LookupError(
            f"with {algorithm} and no PYTHONHASHSEED each process names blocks in its own way: "
            "set it to one value everywhere, or use sha256"
        )
    return {
        "hashes": [algorithm, _short(_digest(seed)) if seed else "fixed"],
        # Everything that the specs say of windows, padding and states.
        "specs": _digest([_spec_facts(spec) for spec in engine.specs]),
        "window_off": bool(config.model_config.disable_sliding_window),
        "rope_length": _rope_length(config.model_config),
        "fast_prefill": bool(getattr(cache, "kv_sharing_fast_prefill", False)),
        "bounded_replay": bool(getattr(cache, "swa_bounded_replay", False)),
        "speculation": str(getattr(config.speculative_config, "method", "none")),
        "lora": config.lora_config is not None,
        "additional": _digest(getattr(config, "additional_config", None)),
        "images": _digest(_image_options(config.model_config)),
    }


def _rope_length(model: Any) -> int:
    """Longest prompt, where rotary embeddings depend on it; else 0."""
    text = model.hf_text_config
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    nested = [each for each in rope.values() if isinstance(each, Mapping)] or [rope]
    kinds = {str(each.get("rope_type") or each.get("type") or "") for each in nested}
    return 0 if kinds <= _FIXED_ROPE else int(model.max_model_len)


def _image_options(model: Any) -> object:
    found = getattr(model, "multimodal_config", None)
    return None if found is None else getattr(found, "mm_processor_kwargs", None)


def _parallel(engine: _Engine) -> Value:
    parallel = engine.config.parallel_config
    return {
        "tp": int(parallel.tensor_parallel_size),
        "pp": int(parallel.pipeline_parallel_size),
        "pcp": int(parallel.prefill_context_parallel_size),
        "dcp": int(parallel.decode_context_parallel_size),
        "copies": int(getattr(engine.cache, "kv_tp_replicas", 1)),
    }


def _connector(engine: _Engine) -> Value:
    return f"keepwarm vllm {engine.mode} {VERSIONS[engine.mode]}"


def _run_blocks(engine: _Engine) -> Value:
    """Blocks of about 32 MiB, a power of two."""
    pages = [
        int(spec.page_size_bytes) * len(group.layer_names)
        for group, spec in zip(engine.groups, engine.specs, strict=True)
    ]
    block_bytes = max(pages) * int(engine.config.parallel_config.world_size)
    if engine.mode == "tier":
        block_bytes *= facts.offload_blocks(engine.config, engine.cache)[0]
    blocks = max(1, RUN_BYTES // block_bytes)
    return min(RUN_BLOCKS_MAX, 1 << (blocks.bit_length() - 1))


_FIELDS: Mapping[str, Callable[[_Engine], Value]] = {
    "layers": _layers,
    "kv_heads": _kv_heads,
    "head_dim": _head_dim,
    "kv_dtype": _kv_dtype,
    "kv_scales": _kv_scales,
    "layout": _layout,
    "engine": _engine_name,
    "attention_backend": _attention_backend,
    "isa": _isa,
    "block_tokens": _block_tokens,
    "kv_options": _kv_options,
    "parallel": _parallel,
    "connector": _connector,
    "run_blocks": _run_blocks,
    "load": _load,
    "quantisation": _quantisation,
    "model": _model,
    # Last, because it may take long: what cannot be is said before.
    "weights": _weights,
}


def _spec_facts(spec: Any) -> dict[str, str]:
    """Everything a spec says, by name."""
    if dataclasses.is_dataclass(spec):
        names: Sequence[str] = [each.name for each in dataclasses.fields(spec)]
    else:
        names = list(vars(spec))
    return {name: _named(getattr(spec, name)) for name in names}


def _dtype(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def _digest(value: object) -> str:
    """A name for a setting's whole content, "none" for an empty one."""
    if value is None or value in ({}, [], ""):
        return "none"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    text = json.dumps(value, sort_keys=True, default=_named)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _named(value: object) -> str:
    """What JSON does not know, if its text says the same in each process."""
    text = str(value)
    if " at 0x" in text:
        raise LookupError(f"{text} has no name that another process would give it")
    return text


def _short(name: str) -> str:
    return name.partition(":")[2][:16] if ":" in name else name[:16]
