"""An engine's HTTP without an engine: its own prefix cache, a memory shared with others, figures.

It computes nothing. A block that it has nowhere costs `COMPUTE_S`, and what it answers follows from
the prompt alone, unless a test spoils what it restores.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

BLOCK_TOKENS = 16
COMPUTE_S = 0.002


class FakeStore:
    """What the replicas share: prefixes by namespace."""

    def __init__(self) -> None:
        self.prefixes: set[tuple[str, int]] = set()
        self.is_up = True


class FakeReplica:
    """One engine; its switches are plain attributes, to be set before or between requests."""

    def __init__(self, store: FakeStore, **switches: Any) -> None:
        self.store = store
        self.version = "0.32.0"
        self.namespace = "ab" * 32
        self.policy = "recompute"
        self.caching = "True"
        self.joined = 1
        self.refused = 0
        self.ours = True
        self.told = True
        self.fresh = False
        self.key: str | None = None
        self.miss = "absent"
        self.spoils = False
        self.restores = True
        self.regret_s = 0.1
        self.sources: Counter[tuple[str, str]] = Counter()
        self._own: set[int] = set()
        for name, value in switches.items():
            assert hasattr(self, name), name
            setattr(self, name, value)
        handler = type("Handler", (_Handler,), {"replica": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def forget(self) -> None:
        """As a new engine in its place would."""
        self._own.clear()
        self.sources.clear()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def serve(self, prompt: list[int], count: int) -> list[int]:
        """Counts where the prompt came from, waits for what is computed, and answers."""
        self.fresh = False
        asked = (len(prompt) - 1) // BLOCK_TOKENS
        prefixes = [hash(tuple(prompt[: (at + 1) * BLOCK_TOKENS])) for at in range(asked)]
        device = _leading([each in self._own for each in prefixes])
        usable = self.store.is_up and self.restores and self.ours
        shared = [(self.namespace, each) in self.store.prefixes for each in prefixes]
        have = max(_leading(shared), device) if usable else device
        self.sources["device", ""] += device * BLOCK_TOKENS
        self.sources["restored_dram", ""] += (have - device) * BLOCK_TOKENS
        why = self.miss if self.store.is_up else "store_down"
        self.sources["recomputed", why] += (asked - have) * BLOCK_TOKENS
        rest = len(prompt) - asked * BLOCK_TOKENS
        self.sources["recomputed", "partial_block"] += rest
        threading.Event().wait(COMPUTE_S * (asked - have + 1))
        self._own.update(prefixes)
        if self.store.is_up and self.ours:
            self.store.prefixes.update((self.namespace, each) for each in prefixes)
        shift = 1 if self.spoils and have > device else 0
        return [(sum(prompt) + at) % 997 + shift for at in range(count)]

    def figures(self) -> str:
        """As /metrics shows them."""
        labels = 'engine="0",model_name="fake"'
        by = Counter[str]()
        for (source, _), tokens in self.sources.items():
            by[source] += tokens
        restored = by["restored_dram"]
        info = (
            f'namespace="{self.namespace}",connector="direct",version="0.1.0",'
            f'load_failure_policy="{self.policy}"'
        )
        lines = [
            f'vllm:cache_config_info{{block_size="16",enable_prefix_caching="{self.caching}"}} 1',
            f"vllm:external_prefix_cache_hits_total{{{labels}}} {restored}",
            *(
                f'vllm:prompt_tokens_by_source_total{{{labels},source="{name}"}} {tokens}'
                for name, tokens in (
                    ("local_cache_hit", by["device"]),
                    ("external_kv_transfer", restored),
                    ("local_compute", by["recomputed"]),
                )
            ),
        ]
        if self.ours and not self.fresh:
            lines += [
                f"keepwarm_connector_info{{{labels},{info}}} 1",
                f"keepwarm_connector_joined{{{labels}}} {self.joined}",
                f"keepwarm_connector_info{{{labels},{info.replace(self.namespace, '00' * 32)}}} 0",
                f"keepwarm_connector_refused{{{labels}}} {self.refused}",
                f'keepwarm_planner_decisions_total{{{labels},why="restore"}} 4',
                f'keepwarm_planner_restore_bytes_per_second{{{labels},tier="dram"}} {2 << 30}',
                f"keepwarm_planner_prefill_seconds_total{{{labels}}} 10",
                f"keepwarm_planner_prefill_token_seconds{{{labels}}} 0.002",
                f"keepwarm_planner_regret_seconds_total{{{labels}}} {self.regret_s}",
            ]
        if self.ours and self.told and not self.fresh:
            lines += [
                f'keepwarm_connector_prompt_tokens_total{{{labels},source="{source}",'
                f'reason="{reason}"}} {tokens}'
                for (source, reason), tokens in self.sources.items()
            ]
        return "\n".join(lines) + "\n"


def _leading(hits: list[bool]) -> int:
    return next((at for at, hit in enumerate(hits) if not hit), len(hits))


class _Handler(BaseHTTPRequestHandler):
    replica: FakeReplica

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        replica = self.replica
        answers = {
            "/health": "",
            "/version": json.dumps({"version": replica.version}),
            "/v1/models": json.dumps({"data": [{"id": "fake", "max_model_len": 4096}]}),
            "/metrics": replica.figures(),
        }
        self._say(200, answers[self.path]) if self.path in answers else self._say(404, "none")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.replica.key
        if key is not None and self.headers.get("Authorization") != f"Bearer {key}":
            self._say(401, "unauthorized")
        elif self.path == "/tokenize":
            tokens = [each % 256 for each in asked["prompt"].encode()]
            self._say(200, json.dumps({"tokens": tokens}))
        elif self.path == "/v1/completions":
            self._stream(asked)
        else:
            self._say(404, "none")

    def _stream(self, asked: dict[str, Any]) -> None:
        tokens = self.replica.serve(asked["prompt"], asked["max_tokens"])
        events: list[dict[str, Any]] = [{"choices": [{"token_ids": [each]}]} for each in tokens]
        events[-1]["choices"][0]["finish_reason"] = "length"
        events.append({"choices": [], "usage": {"prompt_tokens": len(asked["prompt"])}})
        lines = [f"data: {json.dumps(each)}\n\n" for each in events]
        self._say(200, "".join([*lines, "data: [DONE]\n\n"]))

    def _say(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
