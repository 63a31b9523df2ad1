"""One in-process vLLM on the CPU with the dictionary tier, and a random model made offline."""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    OMP_NUM_THREADS="2",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_LOGGING_LEVEL=os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
)
HERE = str(pathlib.Path(__file__).parent)
os.environ["PYTHONPATH"] = HERE + os.pathsep + os.environ.get("PYTHONPATH", "")
sys.path.insert(0, HERE)

import tier as tiers
import torch
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig

BLOCK_TOKENS = 32
VOCABULARY = 2048


def random_model(hybrid: bool = False) -> str:
    """A Llama of 4 layers, 8 KiB of fp32 KV a token; `hybrid`: 5 layers, 3 of them slide."""
    from transformers import LlamaConfig, LlamaForCausalLM

    name = "hybrid" if hybrid else "full"
    path = pathlib.Path(tempfile.gettempdir()) / "keepwarm-vllm-tier" / name
    if (path / "config.json").exists():
        return str(path)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=5 if hybrid else 4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=16384,
        tie_word_embeddings=True,
        initializer_range=0.08,
        bos_token_id=0,
        eos_token_id=0,
    )
    if hybrid:
        config.layer_types = ["full_attention", "sliding_attention"] * 2 + ["sliding_attention"]
        config.sliding_window = 64
    LlamaForCausalLM(config).save_pretrained(path)
    return str(path)


def prompt(seed: int, tokens: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCABULARY, (tokens,), generator=generator).tolist()


@dataclass
class Answer:
    tokens: list[int]
    cached_tokens: int
    seconds: float
    finished: bool = True


class Engine:
    def __init__(self, host_chunks: int, hybrid: bool = False, **options: Any) -> None:
        extra = {
            "spec_name": "HostTieringSpec",
            "spec_module_path": "host_spec",
            "cpu_bytes_to_use": host_chunks * BLOCK_TOKENS * 8192 * options.pop("copies", 1),
            "secondary_tiers": [{"type": "DictionaryTier", "module_path": "tier"}],
        } | options.pop("extra", {})
        self.llm = LLM(
            random_model(hybrid),
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            block_size=BLOCK_TOKENS,
            max_model_len=8448,
            max_num_batched_tokens=2048,
            disable_hybrid_kv_cache_manager=not hybrid,
            disable_log_stats=False,
            kv_transfer_config=KVTransferConfig(
                kv_connector="OffloadingConnector",
                kv_role="kv_both",
                kv_connector_extra_config=extra,
            ),
            **options,
        )
        self.core = self.llm.llm_engine
        self.scheduler = self.core.engine_core.engine_core.scheduler
        self.connector = self.scheduler.connector.connector_scheduler
        self.primary = self.connector.manager.primary_tier
        self.tier = tiers.TIERS[-1]
        self.scan_s: list[float] = []
        self._serial = 0
        self._time_the_scan()

    def _time_the_scan(self) -> None:
        inner = self.scheduler.connector.get_num_new_matched_tokens

        def timed(request: Any, computed: int) -> Any:
            start = time.perf_counter()
            result = inner(request, computed)
            self.scan_s.append(time.perf_counter() - start)
            return result

        self.scheduler.connector.get_num_new_matched_tokens = timed

    def add(self, tokens: list[int], n: int = 8, salt: str = "", params: Any = None) -> str:
        self._serial += 1
        request: dict[str, Any] = {"prompt_token_ids": tokens}
        if salt:
            request["cache_salt"] = salt
        sampling = SamplingParams(
            temperature=0, max_tokens=n, ignore_eos=True, detokenize=False, extra_args=params
        )
        self.core.add_request(f"r{self._serial}", request, sampling)
        return f"r{self._serial}"

    def turn(self) -> list[Any]:
        """One engine step; sleeps 1 ms when nothing came out, as vLLM's own loop does."""
        outputs = self.core.step()
        if not outputs:
            time.sleep(0.001)
        return outputs

    def until(self, reached: Callable[[], bool], limit_s: float = 20.0) -> None:
        start = time.monotonic()
        while not reached():
            if time.monotonic() - start > limit_s:
                raise TimeoutError("the engine never got there")
            self.turn()

    def finish(self, *names: str, limit_s: float = 60.0) -> dict[str, Answer]:
        """Steps until the named requests are done; past the limit the others are aborted."""
        start = time.monotonic()
        done: dict[str, Answer] = {}
        while len(done) < len(names) and time.monotonic() - start < limit_s:
            for output in self.turn():
                if output.finished and output.request_id in names:
                    done[output.request_id] = Answer(
                        list(output.outputs[0].token_ids),
                        output.num_cached_tokens or 0,
                        time.monotonic() - start,
                    )
        late = [name for name in names if name not in done]
        self.core.abort_request(late)
        return done | {name: Answer([], 0, limit_s, finished=False) for name in late}

    def ask(self, tokens: list[int], limit_s: float = 60.0, **options: Any) -> Answer:
        name = self.add(tokens, **options)
        return self.finish(name, limit_s=limit_s)[name]

    def settle(self, limit_s: float = 10.0) -> bool:
        """Steps until every job has been reported."""
        start = time.monotonic()
        while self.scheduler.has_requests():
            self.turn()
            if time.monotonic() - start > limit_s:
                return False
        return True

    def forget(self, host: bool = True) -> None:
        """Empties the device cache, and the host pool too, without a new epoch."""
        self.settle()
        keep, self.tier.policy.new_epoch_on_drain = self.tier.policy.new_epoch_on_drain, False
        assert self.llm.reset_prefix_cache(reset_connector=host)
        self.tier.policy.new_epoch_on_drain = keep

    def pinned(self) -> int:
        primary = self.primary
        used = primary._num_allocated_chunks - len(primary._free_list)
        return used - primary._num_evictable_cache_chunks
