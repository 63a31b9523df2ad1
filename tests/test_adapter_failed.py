"""Keys whose load failed: held for a moment, bounded, found fast."""

from __future__ import annotations

import random

import pytest
from keepwarm.adapter import failed as failed_module
from keepwarm.adapter.failed import FEW, HOLD_S, LONG_HOLD_S, FailedKeys
from keepwarm.adapter.reasons import Recomputed
from keepwarm.testing import ManualClock


def test_a_key_is_held_for_a_moment_or_until_it_is_stored_again() -> None:
    clock = ManualClock()
    failed = FailedKeys(clock.now_s)
    one, other, third = (bytes([n]) * 16 for n in range(3))
    failed.add(one, Recomputed.CORRUPT)
    failed.add(other, Recomputed.IDENTITY)
    assert failed.reason(one) is Recomputed.CORRUPT
    assert failed.reason(third) is None
    clock.advance(HOLD_S)
    assert failed.reason(one) is None
    assert failed.reason(other) is Recomputed.IDENTITY
    clock.advance(LONG_HOLD_S)
    assert failed.reason(other) is None
    failed.add(one, Recomputed.DEADLINE)
    failed.forget([one, third])
    assert not failed
    failed.add(one, Recomputed.DEADLINE)
    failed.clear()
    assert failed.reason(one) is None


@pytest.mark.parametrize("held", [1, FEW, FEW + 1, 500])
def test_the_first_of_a_prompt_is_found(held: int) -> None:
    rng = random.Random(held)
    # Two values a byte: keys that begin within others are common.
    prompt = [bytes(rng.choices((0, 1), k=16)) for _ in range(300)]
    failed = FailedKeys(ManualClock().now_s)
    chosen = {rng.choice(prompt) if rng.random() < 0.2 else rng.randbytes(16) for _ in range(held)}
    for key in chosen:
        failed.add(key, Recomputed.DEADLINE)
    expected = next((at for at, key in enumerate(prompt) if key in chosen), None)
    found = failed.first(b"".join(prompt))
    assert (None if found is None else found[0]) == expected
    assert failed.first(b"") is None


def test_the_oldest_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_module, "KEYS_MAX", 10)
    failed = FailedKeys(ManualClock().now_s)
    for number in range(25):
        failed.add(number.to_bytes(16), Recomputed.DEADLINE)
    assert len(failed) == 10
    assert failed.reason((14).to_bytes(16)) is None
    assert failed.reason((15).to_bytes(16)) is Recomputed.DEADLINE
