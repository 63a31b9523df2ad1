"""Settles open questions about vLLM's tier interface.

usage: run.py [main|small|hybrid|two|wide|all]; each starts one engine in its own process.
"""

from __future__ import annotations

import subprocess
import sys
import time

import engine as engines
from cases import last_held, main, round_trips, rows, same, show
from engine import BLOCK_TOKENS, Engine, prompt


def small() -> None:
    e = Engine(host_chunks=16)
    rows(e)
    long = prompt(20, 1056)  # 33 blocks: more than the host pool has
    e.tier.policy.jobs_max = 1000
    expected = e.ask(long)
    for most in (10**9, None):
        for n in range(0, 33, 8):  # the pool is small: store the prompt piece by piece
            e.ask(long[: (n + 8) * BLOCK_TOKENS], n=1)
            e.forget()
        e.tier.policy.restore_blocks_max = most
        jobs = e.tier.store.loads
        answer = e.ask(long, limit_s=2.0)
        show(
            f"5 33 blocks, pool of 16, max={most}",
            finished=answer.finished,
            stored=len(e.tier.store.blocks),
            same=same(answer, expected),
            load_jobs=e.tier.store.loads - jobs,
            cached=answer.cached_tokens,
        )
        e.forget()
    for honour in (False, True):
        late_load(e, honour)
        late_store(e, honour)
    pool_pinned(e)


def late_load(e: Engine, honour: bool) -> None:
    """A load is reported failed at its deadline; another prompt takes its chunks; bytes arrive."""
    tokens, other = prompt(21 + honour, 8 * BLOCK_TOKENS + 1), prompt(23, 8 * BLOCK_TOKENS + 1)
    expected = e.ask(tokens)
    e.forget()
    e.tier.policy.job_deadline_s = 0.1
    e.tier.switches.fenced = honour
    e.tier.switches.load_gate.clear()
    first = e.ask(tokens)  # its load fails; what it recomputes takes the other half of the pool
    e.settle()
    e.tier.policy.use_tier = False
    expected_other = e.ask(other)
    e.settle()
    e.tier.switches.heal()
    time.sleep(0.2)
    e.forget(host=False)
    again = e.ask(other)
    e.tier.policy.use_tier = True
    show(
        f"2 late load, fence={honour}",
        first_same=same(first, expected),
        host_hit=again.cached_tokens,
        same=same(again, expected_other),
        late_steps=sum(t.late_steps for t in e.tier.transfers),
    )
    _clean(e)


def late_store(e: Engine, honour: bool) -> None:
    """A store is reported failed at its deadline; then the pool reuses the chunks it reads."""
    tokens = prompt(31 + honour, 8 * BLOCK_TOKENS + 1)
    e.tier.policy.job_deadline_s = 0.1
    e.tier.switches.fenced = honour
    e.tier.switches.store_gate.clear()
    expected = e.ask(tokens)
    e.settle()
    for n in range(2):
        e.ask(prompt(41 + n, 8 * BLOCK_TOKENS + 1))
        e.settle()
    e.tier.switches.heal()
    time.sleep(0.2)
    e.forget()
    again = e.ask(tokens)
    show(
        f"2 late store, fence={honour}",
        store_hit=again.cached_tokens,
        same=same(again, expected),
        late_steps=sum(t.late_steps for t in e.tier.transfers),
    )
    _clean(e)


def _clean(e: Engine) -> None:
    e.tier.policy.job_deadline_s, e.tier.switches.fenced = 0.5, True
    e.settle()
    e.tier.transfers.clear()
    e.tier.store.blocks.clear()
    e.forget()


def pool_pinned(e: Engine) -> None:
    """Hung stores pin the host pool: what do other requests lose until the deadline?"""
    warm = prompt(51, 8 * BLOCK_TOKENS + 1)
    expected = e.ask(warm)
    e.forget()
    e.tier.policy.job_deadline_s = 60.0
    e.tier.switches.store_gate.clear()
    for n in range(2):
        e.ask(prompt(52 + n, 8 * BLOCK_TOKENS + 1))
    for _ in range(5):
        e.turn()
    pinned, answer = e.pinned(), e.ask(warm)
    show(
        "2 pool pinned by hung stores",
        pinned=f"{pinned}/16",
        same=same(answer, expected),
        cached=answer.cached_tokens,
        in_store=8 * BLOCK_TOKENS,
    )
    e.tier.switches.heal()
    e.settle()
    e.forget()
    answer = e.ask(warm)
    show("2 after it", pinned=e.pinned(), same=same(answer, expected), cached=answer.cached_tokens)


def hybrid() -> None:
    e = Engine(host_chunks=64, hybrid=True)
    rows(e)
    tokens = prompt(60, 1070)
    expected = e.ask(tokens)
    e.settle()
    position = list(e.tier.contexts.values())[-1].get_offload_key_position
    parts: dict[int, list[int]] = {}
    for _, key in e.tier.store.blocks:
        parts.setdefault(int.from_bytes(key[-4:], "big"), []).append(position(key) // BLOCK_TOKENS)
    for group, blocks in sorted(parts.items()):
        show(f"6 hybrid: group {group}", keys=len(blocks), at_blocks=_ranges(sorted(blocks)))
    e.forget()
    trips, e.scan_s = e.tier.store.lookups, []
    warm = e.ask(tokens)
    asked = list(e.tier.requests.values())[-1].keys
    show(
        "6 hybrid: restored",
        same=same(warm, expected),
        cached=warm.cached_tokens,
        keys_asked=len(asked),
        round_trips=e.tier.store.lookups - trips,
        **last_held(e),
    )
    stale_tails(e)


def stale_tails(e: Engine) -> None:
    """A row is as long as the largest group's: what is in the rest of a shorter group's row?"""
    short = min(e.tier.config.groups, key=lambda g: len(g.layer_names))
    for n in range(4):
        e.ask(prompt(62 + n, 1070), n=1)
        e.settle()
    rows = [d for (_, k), (d, _) in e.tier.store.blocks.items() if k[-1] == short.group_id]
    used = max(len(g.layer_names) for g in e.tier.config.groups)
    used = e.tier.row_bytes * len(short.layer_names) // used
    halves = [any(row[:used]) for row in rows], [any(row[used:]) for row in rows]
    show(
        "6 hybrid: shorter group's rows",
        rows=len(rows),
        used_bytes=used,
        with_foreign_bytes_in_the_tail=sum(halves[1]),
        head_full=sum(halves[0]),
    )


def _ranges(numbers: list[int]) -> str:
    return f"{numbers[0]}..{numbers[-1]}" if len(numbers) > 4 else str(numbers)


def two() -> None:
    e = Engine(host_chunks=128, tensor_parallel_size=2, copies=1)
    rows(e)
    tokens = prompt(61, 1056)
    expected = e.ask(tokens)
    e.forget()
    warm = e.ask(tokens)
    show(
        "6 two ranks: restored",
        same=same(warm, expected),
        cached=warm.cached_tokens,
        keys=len(e.tier.store.blocks),
        **last_held(e),
    )


def wide() -> None:
    """Four blocks a chunk: fewer keys, longer rows."""
    e = Engine(host_chunks=384, extra={"blocks_per_chunk": 4})
    rows(e)
    round_trips(e)


if __name__ == "__main__":
    QUESTIONS = {"main": main, "small": small, "hybrid": hybrid, "two": two, "wide": wide}
    case = sys.argv[1] if len(sys.argv) > 1 else "all"
    if case == "all":
        for name in QUESTIONS:
            subprocess.run([sys.executable, engines.HERE + "/run.py", name], check=False)
    else:
        QUESTIONS[case]()
