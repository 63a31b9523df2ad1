"""Namespaces for tests: every field filled in, none of them meant."""

from __future__ import annotations

from typing import Any

from keepwarm import Namespace

_FIELDS: dict[str, Any] = {
    "tenant": "default",
    "model": "keepwarm/test",
    "weights": "test:none",
    "load": "dummy",
    "quantisation": "none",
    "kv_dtype": "bf16",
    "kv_scales": "none",
    "layers": 2,
    "kv_heads": 2,
    "head_dim": 8,
    "layout": "opaque",
    "engine": "keepwarm.testing",
    "attention_backend": "none",
    "isa": "any",
    "block_tokens": 16,
    "kv_options": [],
    "parallel": "tp=1",
    "connector": "keepwarm.testing/1",
    "parts": 1,
    "run_blocks": 16,
}


def namespace(*, secret: str | None = None, **changes: Any) -> Namespace:
    """A valid namespace for tests: `namespace(parts=2, block_tokens=64)`.

    Every field has a value that no real engine has, so that test blocks never meet real ones;
    `changes` replaces fields.
    """
    return Namespace(secret=secret, **{**_FIELDS, **changes})
