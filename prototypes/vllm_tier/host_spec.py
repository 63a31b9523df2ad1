"""vLLM's tiering spec with a worker that copies host memory, so that it runs without a GPU.

One chunk row holds what every worker has of that chunk: worker after worker, and inside a worker
tensor after tensor. A key group uses only the tensors that hold its layers.
"""

from __future__ import annotations

import contextlib
import pathlib
import time
from typing import Any

import numpy as np
import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

WORKERS: list[HostWorker] = []


class HostWorker(OffloadingWorker):
    def __init__(self, caches: Any, blocks_per_chunk: int, region: SharedOffloadRegion) -> None:
        self.blocks_per_chunk = blocks_per_chunk
        self.region = region
        self.groups = caches.group_data_refs
        self.done: list[TransferResult] = []
        self.pages: list[tuple[np.ndarray, np.ndarray, int]] = []  # engine, host, page bytes
        for cache in caches.tensors:
            size = cache.page_size_bytes
            row = region.create_next_worker_view(size * blocks_per_chunk)
            engine = cache.tensor.view(torch.int8).view(-1, size).numpy()
            self.pages.append((engine, row.numpy(), size))
        WORKERS.append(self)

    def _copy(self, job_id: int, engine_spec: Any, host_spec: Any, store: bool) -> bool:
        start, moved = time.perf_counter(), 0
        blocks, chunks = iter(engine_spec.block_ids), list(host_spec.block_ids)
        shape = zip(self.groups, engine_spec.group_sizes, engine_spec.block_indices, strict=True)
        for refs, count, first in shape:
            offset = first % self.blocks_per_chunk
            mine = chunks[: -(-(count + offset) // self.blocks_per_chunk)] if count else []
            del chunks[: len(mine)]
            for n in range(offset, offset + count):
                block, chunk = next(blocks), mine[n // self.blocks_per_chunk]
                for ref in refs:
                    engine, host, size = self.pages[ref.tensor_idx]
                    at = (n % self.blocks_per_chunk) * size
                    host_page = host[chunk, at : at + ref.page_size_bytes]
                    engine_page = engine[block, : ref.page_size_bytes]
                    np.copyto(*((host_page, engine_page) if store else (engine_page, host_page)))
                    moved += ref.page_size_bytes
        self.done.append(TransferResult(job_id, True, moved, time.perf_counter() - start))
        return True

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, src_spec, dst_spec, store=True)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, dst_spec, src_spec, store=False)

    def get_finished(self) -> list[TransferResult]:
        done, self.done = self.done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Copies are finished when submit returns."""

    def shutdown(self) -> None:
        self.pages.clear()
        self.region.cleanup()


class HostTieringSpec(TieringOffloadingSpec):
    _worker: OffloadingWorker | None

    def get_manager(self) -> Any:
        """Runs after every worker mapped the region: unlink it, so that no kill can leak it."""
        manager = super().get_manager()
        if self._scheduler_mmap is not None:
            with contextlib.suppress(FileNotFoundError):
                pathlib.Path(self._scheduler_mmap.mmap_path).unlink()
        return manager

    def get_worker(self, kv_caches: Any) -> OffloadingWorker:
        if self._worker is None:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = HostWorker(kv_caches, self.blocks_per_chunk, region)
        return self._worker
