"""Content digests of LoRA adapters: vLLM's block hashes know an adapter by name and path alone.

An adapter is read once, by one thread for all, when its first request comes; until then its
requests neither load nor store. The digest stays as it was first read, as the adapter in the engine
does. What vLLM is told to load again in place, and what is no folder of this machine, has none.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from pathlib import Path
from typing import Any

from keepwarm.adapter.threads import start
from keepwarm.connectors.vllm.weights import content_name

log = logging.getLogger("keepwarm.vllm")

ADAPTERS_MAX = 1024
Name = tuple[str, int, str]  # name, number, path
_FILES = ("*.safetensors", "*.bin", "*.pt", "adapter_config.json")


class Adapters:
    """Asked on the scheduler's thread."""

    def __init__(self) -> None:
        self._digests: dict[Name, bytes | None] = {}
        self._lock = threading.Lock()
        self._unread: deque[Name] = deque()
        self._is_reading = False

    def digest(self, request: Any) -> bytes | None:
        """Of the adapter that a vLLM LoRARequest names; None: not known, or not yet."""
        if getattr(request, "load_inplace", False):
            return None
        name = (str(request.lora_name), int(request.lora_int_id), str(request.lora_path))
        if name not in self._digests and len(self._digests) < ADAPTERS_MAX:
            self._digests[name] = None
            self._want(name)
        return self._digests.get(name)

    def _want(self, name: Name) -> None:
        with self._lock:
            self._unread.append(name)
            is_reading, self._is_reading = self._is_reading, True
        if not is_reading and start("adapters", self._read_all) is None:
            self._is_reading = False  # no thread to be had: the next adapter tries again

    def _read_all(self) -> None:
        while True:
            with self._lock:
                if not self._unread:
                    self._is_reading = False
                    return
                name = self._unread.popleft()
            self._read(name)

    def _read(self, name: Name) -> None:
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
