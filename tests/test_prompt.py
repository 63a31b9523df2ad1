"""Keys with their places: slices keep them, and what cannot be is refused."""

from __future__ import annotations

import random

import pytest
from keepwarm import ArgumentError, Prompt
from keepwarm.testing import FakeMemory, namespace

NAMES = namespace(block_tokens=2, run_blocks=4)


def heads_of(keys: bytes, first: int, count: int) -> bytes:
    runs = range(first // 4, (first + count - 1) // 4 + 1) if count else ()
    return b"".join(keys[64 * run : 64 * run + 16] for run in runs)


def test_a_prompt_is_the_keys_of_its_blocks() -> None:
    prompt = NAMES.prompt(list(range(21)))
    assert (len(prompt), prompt.first_position) == (10, 0)
    assert prompt.keys == NAMES.block_keys(list(range(21)))
    assert prompt.run_heads == heads_of(prompt.keys, 0, 10)
    assert len(NAMES.prompt([1])) == 0


def test_any_slice_of_any_slice_keeps_its_places() -> None:
    whole = NAMES.prompt(list(range(80)))
    rng = random.Random(20261201)
    for _ in range(300):
        part, first, count = whole, 0, 40
        while count and rng.random() < 0.8:
            start = rng.randrange(count + 1)
            stop = rng.randrange(start, count + 1)
            part, first, count = part[start:stop], first + start, stop - start
        assert part.keys == whole.keys[16 * first : 16 * (first + count)]
        assert (len(part), part.first_position) == (count, first)
        assert part.run_heads == heads_of(whole.keys, first, count)
        again = NAMES.place(part.keys, part.first_position, part.run_heads[:16])
        assert again == part


def test_a_prompt_grows() -> None:
    tokens = list(range(30))
    assert NAMES.prompt(tokens[12:], after=NAMES.prompt(tokens[:12])) == NAMES.prompt(tokens)
    with pytest.raises(ArgumentError, match="from its first block"):
        NAMES.prompt(tokens, after=NAMES.prompt(tokens)[1:])


def test_places_that_cannot_be_are_refused() -> None:
    keys = NAMES.block_keys(list(range(20)))
    with pytest.raises(ArgumentError, match="within a run of 4 blocks: give the key at position 4"):
        NAMES.place(keys[16 * 5 :], 5)
    with pytest.raises(ArgumentError, match=r"run_heads\[1\] is not the key at position 8"):
        NAMES.place(keys[16 * 5 :], 5, keys[64:80] + keys[:16])
    with pytest.raises(ArgumentError, match="run_heads has 4 keys"):
        NAMES.place(keys[16 * 5 :], 5, keys[64:80] * 1 + keys[128:144] + bytes(32))
    with pytest.raises(ArgumentError, match="no multiple of 16"):
        NAMES.place(keys[:-1])
    with pytest.raises(ArgumentError, match="step is 1"):
        NAMES.prompt(list(range(20)))[::2]
    with pytest.raises(ArgumentError, match="take a slice"):
        NAMES.prompt(list(range(20)))[3]  # type: ignore[index]


def test_every_memory_takes_prompts_of_its_namespace_alone() -> None:
    with FakeMemory() as memory:
        space, prompt = memory.attach(NAMES), NAMES.prompt(list(range(8)))
        space.put_from(prompt[:2], bytes(20))
        with space.lookup(prompt) as found:
            assert found.prefix == 2
        other = namespace(block_tokens=2, run_blocks=8).prompt(list(range(8)))
        with pytest.raises(ArgumentError, match="another namespace, which differs in run_blocks"):
            space.lookup(other)
    assert isinstance(prompt, Prompt)
