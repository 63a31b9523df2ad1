"""Where in the engine's memory a block is.

A block's bytes are its pages of all layers, in the order in which the engine names the layers, each
page as it lies in memory. What is inside a page is the attention kernel's own: on a CPU keys are
stored transposed, with some instruction sets packed otherwise again. So pages are moved whole, and
the namespace names engine, backend and instruction set.

    (layer, block) is one run      [B, H, N, C] of the CPU, [B, 2, …], MLA
    (layer, block) is two runs     [2, B, …]: keys and values in halves of their own
    anything else                  refused, with what was found

A kernel may count in smaller blocks than the scheduler: then a page is some of the tensor's rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    MLAAttentionSpec,
    UniformTypeKVCacheSpecs,
)

from keepwarm.errors import IdentityError

RUNS_MAX = 2
_KNOWN = (FullAttentionSpec, MLAAttentionSpec)


class UnknownLayoutError(IdentityError):
    """The engine keeps its KV in a way that this connector does not know."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: KeepwarmConnector does not know how to move it", "layout")


@dataclass(frozen=True, slots=True)
class Layout:
    """`runs` are views of the engine's memory as [block, byte]: a block is their rows in order."""

    runs: tuple[torch.Tensor, ...]
    block_bytes: int
    blocks: int
    description: str


def check_groups(config: KVCacheConfig) -> None:
    """Refuses block tables that one key per block cannot name."""
    groups = config.kv_cache_groups
    if len(groups) != 1:
        kinds = ", ".join(type(group.kv_cache_spec).__name__ for group in groups) or "none"
        raise UnknownLayoutError(
            f"the model has {len(groups)} KV cache groups ({kinds}); run vLLM with "
            "--disable-hybrid-kv-cache-manager where the model allows it"
        )
    tokens = groups[0].kv_cache_spec.block_size
    if config.hash_block_size not in (None, tokens):
        raise UnknownLayoutError(
            f"a block has {tokens} tokens and a block's hash names {config.hash_block_size}"
        )
    for name in groups[0].layer_names:
        spec = _spec(groups[0].kv_cache_spec, name)
        if type(spec) not in _KNOWN:
            raise UnknownLayoutError(f"layer {name} keeps a {type(spec).__name__}")


def read_layout(caches: Mapping[str, Any], config: KVCacheConfig) -> Layout:
    """The layout of what vLLM registers; raises `UnknownLayoutError`."""
    check_groups(config)
    group = config.kv_cache_groups[0]
    runs: list[torch.Tensor] = []
    shapes: dict[str, int] = {}
    seen: set[int] = set()
    for name, cache in caches.items():
        if not isinstance(cache, torch.Tensor):
            raise UnknownLayoutError(f"layer {name} keeps a {type(cache).__name__} of states")
        if cache.data_ptr() in seen:  # a layer that reads another's KV
            continue
        seen.add(cache.data_ptr())
        spec = _spec(group.kv_cache_spec, name) if name in group.layer_names else None
        if spec is None:
            raise UnknownLayoutError(f"layer {name} is in no KV cache group")
        own, shape = _runs(name, cache, config.num_blocks, spec.page_size_bytes)
        runs += own
        shapes[shape] = shapes.get(shape, 0) + 1
    if not runs:
        raise UnknownLayoutError("the engine has registered no KV cache")
    description = "; ".join(f"{count} x {shape}" for shape, count in shapes.items())
    sizes = sum(run.shape[1] for run in runs)
    return Layout(tuple(runs), sizes, config.num_blocks, description)


def _spec(spec: Any, layer: str) -> Any:
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return spec.kv_cache_specs.get(layer)
    return spec


def _runs(
    name: str, cache: torch.Tensor, blocks: int, page_bytes: int
) -> tuple[list[torch.Tensor], str]:
    """The views of one layer whose rows together are a block's page, and what they are."""
    for dimension, size in enumerate(cache.shape):
        if size % blocks or not size:
            continue
        found = _split(cache, dimension, size // blocks, blocks)
        if found is not None and sum(run.shape[1] for run in found) == page_bytes:
            return found, _said(cache, dimension, size // blocks)
    raise UnknownLayoutError(
        f"layer {name} has shape {tuple(cache.shape)} and strides {cache.stride()} for {blocks} "
        f"blocks of {page_bytes} bytes, which are not one or two runs each"
    )


def _said(cache: torch.Tensor, dimension: int, rows: int) -> str:
    """As an identity has it: without the number of blocks, which differs between machines."""
    sizes = ["B" if at == dimension else str(size) for at, size in enumerate(cache.shape)]
    order = sorted(range(cache.dim()), key=lambda at: (-cache.stride(at), at))
    nested = "".join(str(at) for at in order if at != dimension)
    kind = str(cache.dtype).removeprefix("torch.")
    return f"{kind} [{','.join(sizes)}] nested {nested}, {rows} row(s) a block"


def _split(
    cache: torch.Tensor, dimension: int, rows: int, blocks: int
) -> list[torch.Tensor] | None:
    """Runs if `dimension` counts blocks, `rows` of it a block; None where a run has holes."""
    size = cache.element_size()
    sizes, strides = cache.shape, cache.stride()
    others = [at for at in range(cache.dim()) if at != dimension and sizes[at] > 1]
    inner = sorted(
        (at for at in others if strides[at] < strides[dimension]), key=strides.__getitem__
    )
    outer = [at for at in others if strides[at] >= strides[dimension]]
    run = 1
    for at in inner:
        if strides[at] != run:
            return None
        run *= sizes[at]
    if run > strides[dimension] or len(outer) > 1:
        return None
    starts = [0] if not outer else [at * strides[outer[0]] for at in range(sizes[outer[0]])]
    if rows > 1:
        if strides[dimension] == run:  # a page's rows lie one after the other
            run *= rows
        else:
            starts = [start + row * strides[dimension] for start in starts for row in range(rows)]
    if len(starts) > RUNS_MAX:
        return None
    step = strides[dimension] * rows * size
    whole = torch.empty(0, dtype=torch.uint8, device=cache.device)
    whole.set_(cache.untyped_storage())
    offset = cache.storage_offset() * size
    return [
        whole.as_strided((blocks, run * size), (step, 1), offset + start * size) for start in starts
    ]
