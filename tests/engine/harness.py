"""One vLLM on the CPU in this process, taken step by step."""

from __future__ import annotations

import itertools
import logging
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# vLLM reads these when it is imported, which is why the imports of it are below and in functions.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "2",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
}
BLOCK_TOKENS = 32
VOCABULARY = 2048


def prompt(seed: int, tokens: int) -> list[int]:
    """Token ids that are always the same for a seed; a longer prompt begins with a shorter one."""
    draw = random.Random(seed)
    return [draw.randrange(1, VOCABULARY) for _ in range(tokens)]


@dataclass
class Answer:
    """What one request got."""

    tokens: list[int]
    """token ids that the model gave"""
    cached_tokens: int
    """prompt tokens that vLLM did not compute, by its own account"""
    seconds: float
    """from the start of `finish` to the last token"""
    first_s: float
    """from the start of `finish` to the first token"""
    finished: bool = True
    """false: aborted because time was up"""
    reason: str | None = None
    """vLLM's finish reason"""


class Engine:
    """vLLM's LLM class with scheduler and worker in this process; close it before the next one.

    `connector` is a `kv_transfer_config` as on vLLM's command line (kv_role is filled in); None
    runs without. Other options are vLLM's engine arguments.
    """

    def __init__(
        self, model: Path | str, connector: dict[str, Any] | None = None, **options: Any
    ) -> None:
        os.environ.update({k: v for k, v in ENVIRONMENT.items() if k not in os.environ})
        from vllm import LLM
        from vllm.config import KVTransferConfig

        given: dict[str, Any] = {
            "skip_tokenizer_init": True,
            "dtype": "float32",
            "enforce_eager": True,
            "block_size": BLOCK_TOKENS,
            "max_model_len": 8448,
            "max_num_batched_tokens": 2048,
            "disable_log_stats": False,
            "kv_cache_memory_bytes": 128 << 20,
        }
        if connector is not None:
            given["kv_transfer_config"] = KVTransferConfig(**{"kv_role": "kv_both"} | connector)
        self.llm = LLM(str(model), **given | options)
        self.engine = self.llm.llm_engine
        self.core = self.engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        self._serial = itertools.count(1)

    @property
    def vllm_config(self) -> Any:
        """vLLM's own."""
        return self.engine.vllm_config

    @property
    def worker(self) -> Any:
        """The only worker's, in this process."""
        return self.core.model_executor.driver_worker.worker

    def add(
        self, tokens: Sequence[int], max_tokens: int = 8, salt: str | None = None, **sampling: Any
    ) -> str:
        """Queues a request; returns its name. More keywords go into vLLM's SamplingParams."""
        from vllm import SamplingParams

        name = f"r{next(self._serial)}"
        request: dict[str, Any] = {"prompt_token_ids": list(tokens)}
        if salt is not None:
            request["cache_salt"] = salt
        fixed = {"temperature": 0, "ignore_eos": True, "detokenize": False}
        self.engine.add_request(
            name, request, SamplingParams(max_tokens=max_tokens, **fixed | sampling)
        )
        return name

    def step(self) -> list[Any]:
        """One engine step; waits 1 ms when nothing came out, as vLLM's own loop does."""
        outputs = list(self.engine.step())
        if not outputs:
            threading.Event().wait(0.001)
        return outputs

    def until(self, reached: Callable[[], bool], what: str, limit_s: float = 20.0) -> None:
        """Steps until `reached()`; AssertionError naming `what` when time is up."""
        start = time.monotonic()
        while not reached():
            assert time.monotonic() - start < limit_s, f"not within {limit_s} s: {what}"
            self.step()

    def finish(
        self,
        names: Sequence[str],
        limit_s: float = 120.0,
        each_step: Callable[[], None] | None = None,
    ) -> dict[str, Answer]:
        """Steps until the named requests are done; those that are late are aborted and say so."""
        start = time.monotonic()
        first: dict[str, float] = {}
        done: dict[str, Answer] = {}
        while len(done) < len(names) and time.monotonic() - start < limit_s:
            if each_step is not None:
                each_step()
            for output in self.step():
                took = time.monotonic() - start
                completion = output.outputs[0]
                if completion.token_ids:
                    first.setdefault(output.request_id, took)
                if output.finished and output.request_id in names:
                    done[output.request_id] = Answer(
                        list(completion.token_ids),
                        output.num_cached_tokens or 0,
                        took,
                        first.get(output.request_id, took),
                        reason=completion.finish_reason,
                    )
        late = [name for name in names if name not in done]
        self.abort(late)
        return done | {name: Answer([], 0, limit_s, limit_s, finished=False) for name in late}

    def ask(self, tokens: Sequence[int], limit_s: float = 120.0, **options: Any) -> Answer:
        """One request from start to end."""
        name = self.add(tokens, **options)
        return self.finish([name], limit_s)[name]

    def abort(self, names: Sequence[str]) -> None:
        """Ends requests as a client's disconnect does."""
        if names:
            self.engine.abort_request(list(names))

    def settle(self, limit_s: float = 20.0) -> None:
        """Steps until the scheduler has nothing left, transfers included."""
        self.until(lambda: not self.scheduler.has_requests(), "the engine is at rest", limit_s)

    def forget(self, connector: bool = False) -> bool:
        """Empties the device's prefix cache; with `connector`, what vLLM's call to it does too."""
        self.settle()
        return bool(self.llm.reset_prefix_cache(reset_connector=connector))

    def metrics(self) -> dict[str, float]:
        """vLLM's counters and gauges by name, and by `name{label=value,…}` without model, engine.

        A name alone is the sum over its labels.
        """
        found: dict[str, float] = {}
        for metric in self.llm.get_metrics():
            value = getattr(metric, "value", None)
            if value is None:
                continue
            labels = {k: v for k, v in metric.labels.items() if k not in ("engine", "model_name")}
            found[metric.name] = found.get(metric.name, 0.0) + value
            if labels:
                shown = ",".join(f"{k}={labels[k]}" for k in sorted(labels))
                found[f"{metric.name}{{{shown}}}"] = value
        return found

    def close(self) -> None:
        """Ends the engine so that another may start in this process."""
        import gc

        from vllm.distributed import cleanup_dist_env_and_memory

        self.engine.engine_core.shutdown()
        del self.llm, self.engine, self.core, self.scheduler
        cleanup_dist_env_and_memory()
        gc.collect()


class EngineLog(logging.Handler):
    """What Keepwarm says at WARNING and above (`ours`), and what vLLM says at ERROR (`errors`)."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.ours: list[logging.LogRecord] = []
        self.errors: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        mine = record.name == "keepwarm" or record.name.startswith("keepwarm.")
        if mine:
            self.ours.append(record)
        elif record.levelno >= logging.ERROR:
            self.errors.append(record)

    def clear(self) -> None:
        """Forgets what was said."""
        self.ours.clear()
        self.errors.clear()

    def said(self) -> list[str]:
        """Keepwarm's lines."""
        return [record.getMessage() for record in self.ours]

    def exceptions(self) -> list[str]:
        """Exceptions that anyone logged and that passed through our code, as text."""
        texts = []
        for record in [*self.ours, *self.errors]:
            if record.exc_info is None or record.exc_info[1] is None:
                continue
            text = "".join(traceback.format_exception(record.exc_info[1]))
            if f"{os.sep}keepwarm{os.sep}" in text:
                texts.append(text)
        return texts


def engine_python() -> Path:
    """The interpreter of the engine's environment: ours."""
    return Path(sys.executable)
