"""The host pool's rows: where each chunk's bytes are, and how many of them are its own.

All rows are as long as the largest group's. What a shorter group leaves of its row is not written,
and may hold another request's bytes: it is never stored, hashed or sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keepwarm.errors import IdentityError
from keepwarm.outcomes import Outcome

STEP_BYTES = 1 << 20


class Pool:
    """vLLM's host pool as a tier sees it."""

    def __init__(self, view: memoryview, lengths: Mapping[int, int]) -> None:
        rows = np.asarray(view)
        self.chunks, self.row_bytes = rows.shape
        self.lengths = lengths
        """bytes of a row that are a group's, by group"""
        self._base: int = rows.ctypes.data

    def place(self, chunk: int, group: int) -> tuple[int, int]:
        """Pointer and length of a chunk's own bytes."""
        if not 0 <= chunk < self.chunks:
            raise IndexError(f"chunk {chunk} of a pool of {self.chunks}")
        return self._base + chunk * self.row_bytes, self.lengths[group]


class Rows:
    """Some chunks as a job's pages: bytes move between the node and the pool without a stop."""

    def __init__(self, places: Sequence[tuple[int, int]]) -> None:
        self._places = places
        longest = max((length for _, length in places), default=1)
        self._step = max(1, STEP_BYTES // longest)

    @property
    def step_blocks(self) -> int:
        """Blocks between two looks at the fence."""
        return self._step

    def buffers(self, first: int, count: int) -> Sequence[tuple[int, int]]:
        """The rows themselves."""
        return self._places[first : first + count]

    def landed(self, first: int, outcomes: Sequence[Outcome]) -> None:
        """They are where they belong."""

    def gather(self, first: int, count: int) -> None:
        """They are where they are read from."""


def own_bytes(spec: Any, kv_cache_config: Any) -> dict[int, int]:
    """Bytes of a row that each group fills; IdentityError where that cannot be told exactly.

    A group's layers use the pool's tensors from the first on, one each, so what a group fills is
    the start of each worker's part of the row.
    """
    config = spec.config
    if config.canonical_layout:
        raise _unknown("canonical_layout is set", "leave it out of kv_connector_extra_config")
    if getattr(kv_cache_config, "hisparse_host_num_blocks", None) is not None:
        raise _unknown("the cache is of the hisparse kind", "use the direct connector")
    workers = 1 if spec.replicated_layout else config.parallel.world_size
    part = spec.cpu_page_size_per_worker
    used = {group.group_id: _filled(spec, kv_cache_config, group) for group in config.groups}
    if len(used) == 1:
        return dict.fromkeys(used, part * workers)
    short = [group for group, length in used.items() if length != part]
    if max(used.values()) != part or (short and workers > 1):
        shown = ", ".join(f"group {group} fills {length}" for group, length in used.items())
        raise _unknown(
            f"of {part} bytes a worker, with {workers} workers, {shown}",
            "set disable_hybrid_kv_cache_manager, or use the direct connector",
        )
    return {group: length * workers for group, length in used.items()}


def _filled(spec: Any, kv_cache_config: Any, group: Any) -> int:
    """Bytes of one worker's part that a group fills."""
    cache = kv_cache_config.kv_cache_groups[group.group_id].kv_cache_spec
    page = cache.page_size_bytes
    own = getattr(cache, "unpadded_page_size_bytes", None)
    padded = getattr(cache, "page_size_padded", None)
    if padded is not None and padded != own:
        raise _unknown(
            f"group {group.group_id} ({type(cache).__name__}, layers {_shown(group.layer_names)}) "
            f"pads its pages to {padded} bytes",
            "use the direct connector",
        )
    length: int = page * len(group.layer_names) * spec.blocks_per_chunk
    return length


def _shown(names: Sequence[str]) -> str:
    return f"{names[0]} to {names[-1]}" if len(names) > 1 else names[0]


def _unknown(what: str, instead: str) -> IdentityError:
    return IdentityError(
        f"layout: {what}, and the tier cannot tell which bytes of a host row are a block's: "
        f"{instead}",
        "layout",
    )
