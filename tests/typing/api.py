"""What type checkers see of the public API. `mypy --strict` holds each line, wrong ones included.

Nothing here runs: a line with an ignore must be an error, or mypy complains about the ignore.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, assert_type

import keepwarm
import numpy as np
from keepwarm.aio import AsyncLookup, AsyncSpace


def opening() -> None:
    assert_type(keepwarm.open("2GiB"), keepwarm.Memory)
    assert_type(keepwarm.open(1 << 30, policy="fifo", ttl_s=60), keepwarm.Memory)
    keepwarm.open("2GiB", tenants={"a": keepwarm.Tenant(secret="/s", quota="1GiB", ttl=60)})
    assert_type(keepwarm.connect(), keepwarm.Memory)
    keepwarm.open()  # type: ignore[call-arg]
    keepwarm.open("2GiB", "lru")  # type: ignore[call-arg]
    keepwarm.connect(7)  # type: ignore[arg-type]
    with keepwarm.connect("unix:/s") as memory:
        assert_type(memory, keepwarm.Memory)
        assert_type(memory.stat(), dict[str, Any])


def naming() -> None:
    keepwarm.Namespace(tenant="default", model="m")  # type: ignore[call-arg]
    names = keepwarm.Namespace(
        tenant="default",
        model="m",
        weights="w",
        load="auto",
        quantisation={"bits": 4},
        kv_dtype="bf16",
        kv_scales="none",
        layers=[16, 16],
        kv_heads=8,
        head_dim=128,
        layout="NHD",
        engine="e/1",
        attention_backend="a",
        isa="i",
        block_tokens=16,
        kv_options=[],
        parallel="tp=1",
        connector="c/1",
        parts=1,
        run_blocks=16,
    )
    assert_type(names.fields, Mapping[str, object])
    assert_type(names.block_keys([1, 2, 3]), bytes)
    assert_type(names.block_keys(np.zeros(3, np.uint32), previous=bytes(16)), bytes)
    extras = keepwarm.Extras(lora=b"d", multimodal=[keepwarm.MultimodalItem(b"h", 0, 4)])
    names.block_keys(range(16), None, extras, first_token=16)
    names.block_keys([1.5])  # type: ignore[list-item]
    keepwarm.Extras(b"d")  # type: ignore[call-arg]


def asking(space: keepwarm.Space, keys: bytes) -> None:
    with space.lookup(keys, lease_s=None) as found:
        assert_type(found, keepwarm.Lookup)
        assert_type(found.hits, list[bool])
        assert_type(found.miss, keepwarm.Reason | None)
    outcomes = space.get_into(keys, bytearray(8))
    assert_type(outcomes, list[keepwarm.Outcome])
    status, reason = outcomes[0]
    assert_type(status, keepwarm.Status)
    assert_type(reason, keepwarm.Reason | None)
    space.get_into(keys, [bytearray(8), (1 << 40, 8), np.zeros(8, np.uint8)])
    space.put_from(keys, (1 << 40, 8), engine_hashes=[None, 7])
    space.get_into(keys, 7)  # type: ignore[arg-type]
    space.lookup("text")  # type: ignore[arg-type]
    assert_type(space.bump_epoch(3), keepwarm.EpochOutcome)
    assert_type(space.report(keys, 1), keepwarm.Reported)
    for batch in space.subscribe():
        assert_type(batch, keepwarm.EventBatch)
        assert_type(batch.events, list[keepwarm.Event])
        assert_type(batch.kind, Literal["events", "resync", "snapshot"])
        assert_type(batch.events[0].kind, Literal["stored", "removed", "cleared"])


async def asking_later(space: keepwarm.Space, keys: bytes) -> None:
    assert_type(space.aio, AsyncSpace)
    async with await space.aio.lookup(keys) as found:
        assert_type(found, AsyncLookup)
    assert_type(await space.aio.get_into(keys, bytearray(8)), list[keepwarm.Outcome])
    space.aio.lookup(keys).prefix  # type: ignore[attr-defined]  # noqa: B018
