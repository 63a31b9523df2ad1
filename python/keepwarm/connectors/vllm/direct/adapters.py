"""Content digests of LoRA adapters: vLLM's block hashes know an adapter by name and path alone.

An adapter is read once, by a thread, when its first request comes; until then its requests neither
load nor store. The digest stays as it was first read, as the adapter in the engine does. What vLLM
is told to load again in place, and what is no folder of this machine, has none.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from keepwarm.adapter.threads import start
from keepwarm.connectors.vllm.weights import content_name

log = logging.getLogger("keepwarm.vllm")

ADAPTERS_MAX = 1024
_FILES = ("*.safetensors", "*.bin", "*.pt", "adapter_config.json")


class Adapters:
    """Asked on the scheduler's thread."""

    def __init__(self) -> None:
        self._digests: dict[tuple[str, int, str], bytes | None] = {}

    def digest(self, request: Any) -> bytes | None:
        """Of the adapter that a vLLM LoRARequest names; None: not known, or not yet."""
        if getattr(request, "load_inplace", False):
            return None
        name = (str(request.lora_name), int(request.lora_int_id), str(request.lora_path))
        if name not in self._digests and len(self._digests) < ADAPTERS_MAX:
            self._digests[name] = None
            start("adapter", lambda: self._read(name))
        return self._digests.get(name)

    def _read(self, name: tuple[str, int, str]) -> None:
        folder = Path(name[2])
        try:
            files = sorted({file for kind in _FILES for file in folder.glob(kind)})
            if not files:
                raise FileNotFoundError(f"no adapter's files in {folder}")
            self._digests[name] = bytes.fromhex(content_name(files, folder).partition(":")[2])
        except Exception as error:
            log.warning(
                "keepwarm: requests with adapter %s are not restored: its content cannot be read: "
                "%s: %s",
                *(name[0], type(error).__name__, error),
            )
