"""The engine without a model keeps its own promises, and prompts of block ids theirs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from keepwarm.errors import ArgumentError
from keepwarm.testing import virtual_time
from keepwarm.testing.fake_engine import FakeEngine
from keepwarm.workload.replay import Vocabulary

Asking = Callable[[list[int]], Coroutine[Any, Any, dict[str, Any]]]


def asked(
    folder: Path,
    engine: FakeEngine,
    script: Callable[[Asking], Coroutine[Any, Any, Any]],
    **body: Any,
) -> Any:
    """What a script gets that asks an engine, under a virtual clock."""

    async def main() -> Any:
        path = str(folder / "engine.sock")
        connector = aiohttp.UnixConnector(path)
        async with engine.listening(path), aiohttp.ClientSession(connector=connector) as session:

            async def ask(prompt: list[int]) -> dict[str, Any]:
                loop = asyncio.get_running_loop()
                sent = {"prompt": prompt, "max_tokens": 1, **body}
                begun = loop.time()
                async with session.post("http://engine/v1/completions", json=sent) as answer:
                    found: dict[str, Any] = await answer.json()
                return {**found, "took_s": loop.time() - begun}

            return await script(ask)

    return virtual_time.run(main())


async def passed(seconds: float) -> None:
    """Until so much virtual time has passed."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()


def cached(answer: dict[str, Any]) -> int:
    found: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def test_time_is_what_is_not_cached(folder: Path) -> None:
    engine = FakeEngine(block_tokens=10, prefill_tokens_per_s=10.0, start_s=0.5, token_s=1.0)

    async def script(ask: Asking) -> list[dict[str, Any]]:
        first = list(range(100))
        return [await ask(first), await ask(first), await ask([*first[:25], 7, 7, 7, 7, 7])]

    answers = asked(folder, engine, script, max_tokens=3)
    assert [cached(each) for each in answers] == [0, 90, 20]
    assert [each["took_s"] for each in answers] == pytest.approx([12.5, 3.5, 3.5])
    texts = [each["choices"][0]["text"] for each in answers]
    assert texts[0] == texts[1] != texts[2]


def test_prompts_wait_for_their_turn(folder: Path) -> None:
    async def script(ask: Asking) -> list[float]:
        answers = await asyncio.gather(*(ask([at] * 10) for at in range(4)))
        return sorted(each["took_s"] for each in answers)

    one = FakeEngine(prefill_tokens_per_s=10.0)
    assert asked(folder, one, script) == pytest.approx([1, 2, 3, 4])
    two = FakeEngine(prefill_tokens_per_s=10.0, prefills_at_once=2)
    assert asked(folder, two, script) == pytest.approx([1, 1, 2, 2])


def test_the_least_recently_used_block_leaves(folder: Path) -> None:
    engine = FakeEngine(block_tokens=4, capacity_blocks=4)

    async def script(ask: Asking) -> list[int]:
        prompts = [[1] * 9, [2] * 9, [1] * 9, [3] * 9, [1] * 9, [2] * 9]
        return [cached(await ask(each)) for each in prompts]

    assert asked(folder, engine, script) == [0, 0, 8, 0, 8, 0]


def test_a_stall_ends_nothing_and_begins_nothing(folder: Path) -> None:
    engine = FakeEngine(prefill_tokens_per_s=10.0, prefills_at_once=10)

    async def script(ask: Asking) -> list[float]:
        async def later() -> dict[str, Any]:
            await passed(2.0)
            return await ask([2] * 10)

        asyncio.get_running_loop().call_later(0.5, engine.stall, 4.0)
        answers = await asyncio.gather(ask([1] * 10), later())
        return [each["took_s"] for each in answers]

    # Begun before: ends with the stall. Come during it: begins with its end.
    assert asked(folder, engine, script) == pytest.approx([4.5, 2.5 + 1.0])


def test_a_slow_start_strikes_each_other_request(folder: Path) -> None:
    engine = FakeEngine(prefill_tokens_per_s=10.0)
    engine.faults.slow_start_s, engine.faults.every = 7.0, 2

    async def script(ask: Asking) -> list[float]:
        return [(await ask([at] * 10))["took_s"] for at in range(4)]

    assert asked(folder, engine, script) == pytest.approx([1, 8, 1, 8])


def test_prompts_of_equal_ids_are_equal_and_of_others_differ() -> None:
    words = Vocabulary()
    ids = np.arange(1, 2001, dtype=np.uint64)
    tokens = words.tokens(ids, 16, 32_000, request=0).reshape(2000, 16)
    assert tokens.min() >= 1000
    assert tokens.max() < 32_000
    assert len(np.unique(tokens, axis=0)) == 2000
    again = words.tokens(ids[::-1], 16, 32_000, request=7).reshape(2000, 16)
    assert np.array_equal(again[::-1], tokens)
    # Every token id is about equally likely: 32,000 draws over 31,000 values leave e^-1.03 unseen.
    assert len(np.unique(tokens)) == pytest.approx(31_000 * (1 - np.exp(-32 / 31)), rel=0.02)


def test_what_no_id_names_is_the_requests_own() -> None:
    words = Vocabulary(2048)
    one, other = (words.tokens(np.array([5], np.uint64), 16, 70, request=at) for at in (1, 2))
    assert np.array_equal(one[:16], other[:16])
    for block in range(1, 5):
        at = slice(block * 16, block * 16 + 6)
        assert not np.array_equal(one[at], other[at])
        assert not np.array_equal(one[at], one[16 * block - 16 : 16 * block - 10])
    assert (one.min() >= 512, one.max() < 2048, len(one)) == (True, True, 70)
    # It stays what it was, in every version: runs of different days are compared.
    assert one[:4].tolist() == [2017, 1864, 1516, 1367]
    with pytest.raises(ArgumentError):
        Vocabulary(3)
