"""vLLM's tiering spec for a CPU: a worker that copies host memory, where vLLM has none.

One row of the host pool is one chunk. It holds what every worker has of that chunk, worker after
worker, and inside a worker tensor after tensor; a key group uses only the tensors of its layers:

    row c   | worker 0: tensor 0 | tensor 1 | … | worker 1: tensor 0 | tensor 1 | … | (to a page) |

vLLM's workers and its scheduler find the pool by a name in /dev/shm, and forget to remove it when
they are killed. Here the name goes as soon as the scheduler, the last of them, has mapped it; what
a kill before that left behind goes with the next start.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

logger = init_logger(__name__)

PREFIX = "keepwarm_"
SHARED = Path("/dev/shm")
STALE_S = 120.0  # a name this old, which nobody holds, is of an engine that was killed at its start


class HostTieringSpec(TieringOffloadingSpec):
    """See the module. Selected by `spec_name` and `spec_module_path`."""

    _engine_id: str
    _worker: OffloadingWorker | None

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if config.canonical_layout:
            raise ValueError(
                "kv_connector_extra_config: canonical_layout is not known to HostTieringSpec; "
                "leave it out"
            )
        if self.num_chunks < 1:
            raise ValueError(
                f"kv_connector_extra_config: cpu_bytes_to_use is "
                f"{self.extra_config['cpu_bytes_to_use']}, less than one chunk of "
                f"{self.kv_bytes_per_chunk} bytes; give room for at least one request's chunks"
            )
        self._engine_id = PREFIX + self._engine_id

    def get_manager(self) -> Any:
        """Runs in the scheduler's process, after every worker has mapped the pool."""
        if self._manager is None:
            try:
                super().get_manager()
            finally:
                self._unname()
        return self._manager

    def get_worker(self, kv_caches: Any) -> OffloadingWorker:
        """Runs in each worker's process."""
        if self._worker is None:
            _sweep()
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=0 if self.replicated_layout else self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            with contextlib.suppress(OSError):
                fcntl.flock(region.fd, fcntl.LOCK_SH)  # held for as long as the pool is mapped
            try:
                self._worker = HostWorker(kv_caches, self.blocks_per_chunk, region)
            except Exception:
                region.cleanup()
                raise
        return self._worker

    def _unname(self) -> None:
        region = self._scheduler_mmap
        path = SHARED / f"vllm_offload_{self._engine_id}.mmap"
        with contextlib.suppress(OSError):
            path.unlink()
        if region is not None:
            region._creator = False  # else its cleanup logs that the name is gone


class HostWorker(OffloadingWorker):
    """Copies blocks between the engine's cache and the pool; a copy is over when submit returns."""

    def __init__(self, caches: Any, blocks_per_chunk: int, region: Any) -> None:
        self._blocks_per_chunk = blocks_per_chunk
        self._region = region
        self._groups = caches.group_data_refs
        self._done: list[TransferResult] = []
        self._pages: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], int]] = []
        for place, cache in enumerate(caches.tensors):
            size = cache.page_size_bytes
            row = region.create_next_worker_view(size * blocks_per_chunk)
            self._pages.append((_pages_of(cache, place), row.numpy(), size))

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Engine to pool."""
        return self._copy(job_id, src_spec, dst_spec, store=True)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Pool to engine."""
        return self._copy(job_id, dst_spec, src_spec, store=False)

    def _copy(self, job_id: int, engine_spec: Any, host_spec: Any, store: bool) -> bool:
        start, moved = time.perf_counter(), 0
        blocks, chunks = iter(engine_spec.block_ids), list(host_spec.block_ids)
        shape = zip(self._groups, engine_spec.group_sizes, engine_spec.block_indices, strict=True)
        for refs, count, first in shape:
            offset = first % self._blocks_per_chunk
            mine = chunks[: -(-(count + offset) // self._blocks_per_chunk)] if count else []
            del chunks[: len(mine)]
            for n in range(offset, offset + count):
                place = mine[n // self._blocks_per_chunk], n % self._blocks_per_chunk
                moved += self._copy_block(refs, next(blocks), place, store)
        self._done.append(TransferResult(job_id, True, moved, time.perf_counter() - start))
        return True

    def _copy_block(self, refs: Any, block: int, place: tuple[int, int], store: bool) -> int:
        chunk, at = place
        moved = 0
        for ref in refs:
            engine, host, size = self._pages[ref.tensor_idx]
            length = ref.page_size_bytes
            host_page = host[chunk, at * size : at * size + length]
            engine_page = engine[block, :length]
            np.copyto(*((host_page, engine_page) if store else (engine_page, host_page)))
            moved += length
        return moved

    def get_finished(self) -> list[TransferResult]:
        """All since the last call."""
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Nothing is under way between calls."""

    def shutdown(self) -> None:
        """Lets go of both memories."""
        self._pages.clear()
        self._region._creator = self._region._creator and Path(self._region.mmap_path).exists()
        self._region.cleanup()


def _pages_of(cache: Any, place: int) -> np.ndarray[Any, Any]:
    """The tensor as (blocks, page bytes), without a copy; refuses one that is not laid out so."""
    tensor, size = cache.tensor, cache.page_size_bytes
    if tensor.device.type != "cpu":
        raise ValueError(
            f"HostTieringSpec copies host memory, and the engine's cache is on {tensor.device}: "
            "use spec_name TieringOffloadingSpec there"
        )
    if not tensor.is_contiguous() or tensor.nbytes % size:
        raise ValueError(
            f"tensor {place} of the engine's cache has shape {tuple(tensor.shape)}, strides "
            f"{tuple(tensor.stride())} and pages of {size} bytes, a layout that HostTieringSpec "
            "does not know"
        )
    pages: np.ndarray[Any, Any] = tensor.view(torch.int8).view(-1, size).numpy()
    return pages


def _sweep() -> None:
    """Removes pools whose engines were killed before their names were gone."""
    for path in SHARED.glob(f"vllm_offload_{PREFIX}*.mmap"):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - os.fstat(fd).st_mtime > STALE_S:
                    path.unlink()
                    logger.info("removed %s, left by an engine that was killed", path)
            finally:
                os.close(fd)
