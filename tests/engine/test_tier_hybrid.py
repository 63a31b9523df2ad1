"""A model with full attention and two groups of sliding windows: keys and rows of their own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from keepwarm.testing import NodeProcess

from engine.harness import Engine, prompt
from engine.tiers import assert_at_rest, assert_books_agree, connector, joined, reference, tier_of

PAGE = 32 * 2048  # of one layer


@pytest.fixture(scope="module")
def engine(make_engine: Callable[..., Engine], node: NodeProcess) -> Engine:
    return make_engine("hybrid", connector(node.address), disable_hybrid_kv_cache_manager=False)


@pytest.mark.parametrize("length", [100, 1056, 3000])
def test_windows_are_restored_with_the_prefix_they_belong_to(engine: Engine, length: int) -> None:
    tier = joined(tier_of(engine))
    tokens = prompt(length, length)
    expected = reference(engine, tokens)
    engine.forget(connector=True)
    asked = tier.lookups.counts["asked"]
    answer = engine.ask(tokens)
    assert answer.tokens == expected.tokens
    assert answer.cached_tokens == (length - 1) // 32 * 32
    assert tier.lookups.counts["asked"] - asked == 1
    assert_at_rest(engine, tier)
    assert_books_agree(engine, tier)


def test_the_rest_of_a_shorter_groups_row_is_not_sent(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = joined(tier_of(engine))
    assert sorted(tier.pool.lengths.values()) == [PAGE, 2 * PAGE, 2 * PAGE]
    assert tier.places.run_blocks == 1
    sent: dict[int, set[int]] = {}
    place = tier.pool.place

    def seen(chunk: int, group: int) -> tuple[int, int]:
        pointer, length = place(chunk, group)
        sent.setdefault(group, set()).add(length)
        return pointer, length

    monkeypatch.setattr(tier.pool, "place", seen)
    engine.ask(prompt(7, 1070))
    engine.settle()
    assert {group: lengths.pop() for group, lengths in sent.items()} == tier.pool.lengths
    assert not any(sent.values()), "one length a group"
