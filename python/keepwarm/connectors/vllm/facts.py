"""What only vLLM can say about itself; each function asks the installed one."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from keepwarm.errors import IdentityError


def show_log() -> None:
    """Sends Keepwarm's lines where vLLM's go, unless the operator has said where they go.

    Without it Python drops what is not a warning, such as why a start takes long.
    """
    ours, engines = logging.getLogger("keepwarm"), logging.getLogger("vllm")
    if ours.hasHandlers() or not engines.handlers:
        return
    for handler in engines.handlers:
        ours.addHandler(handler)
    if ours.level == logging.NOTSET:
        ours.setLevel(engines.getEffectiveLevel())


def engine_version() -> str:
    """Of vLLM."""
    from vllm import __version__

    return str(__version__)


def attention_backends(vllm_config: Any) -> list[str]:
    """Of the model's layers; where there are none, in a scheduler's process, the one to expect."""
    from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends

    return sorted({str(each.get_name()) for each in get_current_attn_backends(vllm_config)})


def instruction_sets(vllm_config: Any, specs: list[Any]) -> list[str]:
    """What the inside of a block depends on in the machine: on a CPU the packing of K and V."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        capability = current_platform.get_device_capability()
        if capability is None:
            raise LookupError(f"{current_platform.device_type} does not say its capability")
        return [f"{current_platform.device_type} {capability.as_version_str()}"]
    import torch
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    machine = current_platform.get_cpu_architecture().name.lower()
    wide = " avx512" if torch.cpu._is_avx512_supported() else ""
    cache_dtype = vllm_config.cache_config.cache_dtype
    packings = {
        _get_attn_isa(spec.dtype, spec.block_size, getattr(spec, "head_size", None), cache_dtype)
        for spec in specs
        if hasattr(spec, "dtype")
    } or {"states"}
    return [f"{machine}{wide} {packing}" for packing in sorted(packings)]


def hash_tokens(vllm_config: Any, kv_cache_config: Any) -> int:
    """Tokens that one of a request's block hashes stands for."""
    from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

    return int(resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)[1])


def offload_blocks(vllm_config: Any, kv_cache_config: Any) -> tuple[int, int]:
    """Blocks of a chunk that vLLM offloads as one, and tokens of such a block."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import (
        build_offloading_config,
    )

    built = build_offloading_config(vllm_config, kv_cache_config)
    return built.cache.blocks_per_chunk, min(each.tokens_per_block for each in built.groups)


def model_folder(name: str, revision: str | None, download_dir: str | None) -> Path:
    """Where a model's files are: its folder, or its snapshot in a hub's cache. Fetches nothing."""
    if Path(name).exists():
        return Path(name)
    if "://" in name:
        raise LookupError(f"the files of {name} are not on this machine")
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(name, revision=revision, cache_dir=download_dir, local_files_only=True)
    )


def config_of(offloading: Any) -> tuple[Any, Any]:
    """`VllmConfig` and `KVCacheConfig` of the engine that is making an offloading spec's tier.

    vLLM hands a tier the name of a model and of a type, and neither its weights nor how it is
    configured. But a tier is only ever made inside `OffloadingConnector.__init__`, which has both:
    they are taken from there, and checked to be of the same engine.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        vllm_config: Any = frame.f_locals.get("vllm_config")
        kv_cache_config: Any = frame.f_locals.get("kv_cache_config")
        transfer = getattr(vllm_config, "kv_transfer_config", None)
        if (
            transfer is not None
            and hasattr(kv_cache_config, "kv_cache_groups")
            and transfer.engine_id == offloading.engine_id
        ):
            return vllm_config, kv_cache_config
        frame = frame.f_back
    raise IdentityError(
        "model cannot be determined: this vLLM makes its tiers outside a connector that knows its "
        "configuration; use the connector KeepwarmConnector of keepwarm.connectors.vllm instead",
        "model",
    )


def hash_seed() -> str:
    """What block hashes start from, when the environment says so."""
    return os.environ.get("PYTHONHASHSEED", "")
