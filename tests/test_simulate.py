"""The simulator on traces so small that their answers are worked out beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keepwarm.cli
import pytest
from keepwarm.errors import ArgumentError
from keepwarm.workload.simulate import Level, policies
from simulated import BLOCK_TOKENS, Listed, costs, hits, run

TWO_LINES = Listed(["ABC", "ABD"], tokens=[12, 10])


def dram(blocks: int | None = None, policy: str = "lru", **more: Any) -> Level:
    return Level(tier="dram", capacity_blocks=blocks, policy=policy, **more)


@pytest.mark.parametrize("policy", policies())
def test_two_lines_with_every_policy(policy: str) -> None:
    """Two blocks of memory. ABC is stored tail first: C, B, then A, for which C has to leave as
    the oldest, least and last used, and as what is never used again (opt does not even take it).
    ABD finds A and B: 2 of all 6 blocks, and 8 of all 22 tokens.
    """
    result = run(TWO_LINES, dram(2, policy))
    assert hits(result) == [0, 2]
    assert result.hit_rate().block == 2 / 6
    assert result.hit_rate().token == 8 / 22
    assert result.recomputed_tokens.tolist() == [12, 2]


@pytest.mark.parametrize("policy", policies())
def test_a_prompt_as_large_as_the_memory_used_head_first(policy: str) -> None:
    """Head first, A is the oldest when C comes, and makes room: then ABD finds nothing, though B
    is there, since its prefix is broken. LFU's counts are equal, so the oldest goes as well. Opt
    alone keeps A and B, as C is never used again.
    """
    result = run(TWO_LINES, dram(2, policy), head_first=True)
    assert hits(result) == [0, 2 if policy == "opt" else 0]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        # After A A: {A}. B: {A, B}. C: A is the least recent: {B, C}. B and C are there.
        ("lru", [0, 1, 0, 0, 1, 1]),
        # The same, as A came first.
        ("fifo", [0, 1, 0, 0, 1, 1]),
        # A has two uses, B one: C replaces B, then B replaces C, and C replaces B.
        ("lfu", [0, 1, 0, 0, 0, 0]),
        # A's second use on probation, where two are needed, does not save it: as FIFO.
        ("s3fifo", [0, 1, 0, 0, 1, 1]),
        # A is protected by its second use, but of two blocks none may be protected (a tenth of two
        # is none): when C comes, A goes back to the front of probation, and B leaves from its back:
        # {A, C}. For B, C is in front of A now: A leaves, {B, C}; C is there. B had left one
        # eviction before: it comes back as protected, which changes nothing any more.
        ("adaptive", [0, 1, 0, 0, 0, 1]),
        # A is never used again when C comes.
        ("opt", [0, 1, 0, 0, 1, 1]),
    ],
)
def test_what_is_used_twice_at_once_and_never_again(policy: str, expected: list[int]) -> None:
    assert hits(run(Listed(["A", "A", "B", "C", "B", "C"]), dram(2, policy))) == expected


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        # A's use keeps it when C comes, at B's expense.
        ("lru", [0, 0, 1, 0, 1, 0]),
        # A is the oldest when C comes, B when A comes, C when B comes.
        ("fifo", [0, 0, 1, 0, 0, 0]),
        # A has two uses when C comes, three when B comes.
        ("lfu", [0, 0, 1, 0, 1, 0]),
        # C is never used again: it is not taken in at all, and B is still there.
        ("opt", [0, 0, 1, 0, 1, 1]),
    ],
)
def test_what_is_used_between_others(policy: str, expected: list[int]) -> None:
    assert hits(run(Listed(["A", "B", "A", "C", "A", "B"]), dram(2, policy))) == expected


def test_a_circle_that_is_one_block_too_long() -> None:
    """LRU lets go of each block just before its use. Opt keeps two of three: of C and A, both of
    which come again, the one that comes later leaves or is not taken in.
    """
    circle = Listed(["A", "B", "C"] * 3)
    assert hits(run(circle, dram(2))) == [0] * 9
    # {A, B}; C comes later than both: not taken. A: next 6. B: next 7. C (next 8): not taken.
    assert hits(run(circle, dram(2, "opt"))) == [0, 0, 0, 1, 1, 0, 1, 1, 0]


def test_unbounded_memory_forgets_nothing() -> None:
    for policy in policies():
        assert hits(run(Listed(["ABC", "D", "ABC", "ABX", "B"]), dram(None, policy))) == (
            [0, 0, 3, 2, 1]
        )


def test_time_to_live_counts_from_storing() -> None:
    """Ten seconds. Stored at 0, still there at 5 and used; gone at 11, and stored again: until 21,
    at which moment it is gone."""
    trace = Listed(["A"] * 5, times_s=[0, 5, 11, 20, 21])
    assert hits(run(trace, dram(9, ttl_s=10.0))) == [0, 1, 0, 1, 0]


def test_what_ended_makes_no_one_leave() -> None:
    """Two blocks: A and B end at 10, C and D take their places at 11 and stay together."""
    trace = Listed(["A", "B", "C", "D", "C", "D"], times_s=[0, 0, 11, 11, 12, 12])
    assert hits(run(trace, dram(2, ttl_s=10.0))) == [0, 0, 0, 0, 1, 1]


def test_second_use_admission() -> None:
    """A is not taken at first; asked for again it is; the third time it is there. B never is."""
    trace = Listed(["A", "B", "A", "A"])
    assert hits(run(trace, dram(9, admission="second-use"))) == [0, 0, 0, 1]


def test_demotion_goes_one_tier_down() -> None:
    """One block each. B pushes A from host to dram. A comes from there, and B is pushed down in its
    place. So every request finds what the one before pushed down."""
    trace = Listed(["A", "B", "A", "B", "A"])
    result = run(trace, Level(tier="host", capacity_blocks=1), dram(1, source="demotion"))
    assert hits(result, "host") == [0, 0, 0, 0, 0]
    assert hits(result, "dram") == [0, 0, 1, 1, 1]


def test_the_nearest_tier_serves() -> None:
    """Host holds one block: the head, which is stored last. The rest comes from dram."""
    result = run(Listed(["ABC", "ABC"]), Level(tier="host", capacity_blocks=1), dram(9))
    assert hits(result, "host") == [0, 1]
    assert hits(result, "dram") == [0, 2]
    assert result.hit_tokens.tolist() == [[0, 0], [0, 4], [0, 8], [0, 0], [0, 0]]


def test_count_from_leaves_out_the_warm_up() -> None:
    result = run(Listed(["AB", "AB", "AB", "AC"]), dram(9), count_from=0.5)
    assert result.first_counted == 2
    assert result.hit_rate().block == 3 / 4
    found = result.to_json()
    assert (found["requests"], found["counted_requests"], found["blocks"]) == (4, 2, 4)


def test_tokens_without_an_id() -> None:
    """Nine tokens, of which two blocks are known: the ninth is asked for, and never found."""
    result = run(Listed(["AB", "AB"], tokens=[9, 9]), dram(9))
    rate = result.hit_rate()
    assert (rate.block, rate.token, rate.covered_token) == (2 / 4, 8 / 18, 8 / 16)


def test_opt_is_refused_where_it_means_nothing_or_takes_too_much() -> None:
    trace = Listed(["ABC"] * 4)
    with pytest.raises(ArgumentError, match="one replica and one tier"):
        run(trace, dram(1, "opt"), Level(tier="flash"))
    with pytest.raises(ArgumentError, match="one replica"):
        run(trace, dram(1, "opt"), replicas=2)
    with pytest.raises(ArgumentError, match="keepwarm workload curve"):
        run(trace, dram(1, "opt"), opt_bytes_max=100)


@pytest.mark.parametrize(
    ("level", "settings", "says"),
    [
        (dram(0), {}, "0 blocks"),
        (dram(1, "lifo"), {}, "lifo.*opt, default"),
        (dram(1, ttl_s=0.0), {}, "above 0"),
        (dram(1, ttl_s=float("nan")), {}, "above 0"),
        (Level(tier="tape"), {}, "tape.*device, host"),
        (dram(1), {"replicas": 0}, "give 1 to"),
        (dram(1), {"router": "random"}, "random.*round-robin"),
        (dram(1), {"router": "kv-aware"}, "--model"),
        (dram(1), {"planned": True}, "--model"),
        (dram(1), {"count_from": 1.0}, "below 1"),
        (dram(3), {"replicas": 4, "shared": False}, "cannot be parted among 4"),
        (dram(1), {"router": "prefix-hash", "prefix_blocks": 0}, "give 1 to"),
    ],
)
def test_settings_that_cannot_be(level: Level, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        run(Listed(["A"]), level, **settings)


def test_an_empty_prompt_and_a_prompt_of_no_known_block() -> None:
    trace = Listed(["", "A", "A", ""], tokens=[0, 4, 4, 7])
    for policy in ("lru", "opt"):
        result = run(trace, dram(9, policy), costs=costs())
        assert hits(result) == [0, 0, 1, 0]
        assert result.recomputed_tokens.tolist() == [0, 4, 0, 7]
    assert result.prefill_s.tolist() == [0.0, 4.0, 1.0, 7.0]


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 0, "input_length": 3 * 512, "output_length": 1, "hash_ids": [1, 2, 3]},
        {"timestamp": 9, "input_length": 2 * 512 + 9, "output_length": 1, "hash_ids": [1, 2, 4]},
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    base = ["workload", "simulate", str(path)]
    assert keepwarm.cli.main([*base, "--policy", "lru", "--capacity-blocks", "2", "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["hit_rate"]["block"] == 2 / 6
    assert found["hit_rate"]["token"] == 1024 / (1536 + 1033)
    assert said.err == ""
    # 128 KiB a token and 512 tokens a block: 128 MiB are two blocks.
    sized = ["--model", "Llama-3.1-8B", "--capacity", "dram=128MiB", "--replicas", "2"]
    assert keepwarm.cli.main([*base, *sized, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["levels"][0]["capacity_blocks"] == 2
    assert found["gpu_s"]["spent"] + found["gpu_s"]["saved"] == found["gpu_s"]["without"]
    assert keepwarm.cli.main([*base, *sized]) == 0
    shown = capsys.readouterr().out
    assert "hit rate" in shown
    assert "to first token" in shown
    for wrong, says in (
        ([], "say how large the memory is"),
        (["--capacity", "dram=1GiB"], "--kv-bytes-per-token"),
        (["--capacity-blocks", "1", "--second-use", "flash"], "give --capacity flash=SIZE"),
    ):
        assert keepwarm.cli.main([*base, *wrong]) == 2
        assert says in capsys.readouterr().err


def test_block_tokens_are_the_traces() -> None:
    assert run(TWO_LINES, dram(2)).info.block_tokens == BLOCK_TOKENS
