"""What Python may hand to the simulator by mistake: refused with a reason, or served; no faults."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from keepwarm import _core
from keepwarm.errors import ArgumentError, KeepwarmError

COSTS = (0.1, 1e-3, 1e-6, 10.0, [(0.0, 1e9)] * 5)
NODE = (1 << 20, 4096, "default", 0, None, None, None)
NUMBERS = (0, 1, 7, 1 << 20, 1 << 31, (1 << 32) - 1, -1, (1 << 63) + 1, 1 << 70)
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-300, 1e300, float("inf"), float("nan"))
TYPES = (np.float32, np.float64, np.int8, np.uint16, np.int64, np.uint64, np.uint32, np.object_)


def columns(rng: random.Random) -> dict[str, Any]:
    """A batch that is right."""
    count = rng.randrange(6)
    ids = [[rng.randrange(9) for _ in range(rng.randrange(5))] for _ in range(count)]
    draw = np.random.default_rng(rng.randrange(1 << 30))
    return {
        "times_s": np.cumsum(draw.random(count)),
        "input_tokens": draw.integers(0, 100, count).astype(np.uint32),
        "output_tokens": np.zeros(count, np.uint32),
        "sessions": draw.integers(0, 3, count).astype(np.uint64),
        "tenants": np.zeros(count, np.uint64),
        "offsets": np.cumsum([0, *map(len, ids)]).astype(np.uint64),
        "block_ids": np.array([each for one in ids for each in one], np.uint64),
    }


def spoiled(rng: random.Random) -> Any:
    """The same with one column, or all, that is not."""
    batch = columns(rng)
    name = rng.choice(list(batch))
    column = batch[name]
    ways: list[Any] = [
        column[:-1],
        column[::-1].copy(),
        column[:0],
        column.astype(rng.choice(TYPES)),
        np.repeat(column, 2)[::2],
        column.reshape(1, -1),
        column.byteswap().view(column.dtype.newbyteorder()),
        np.full_like(column, rng.choice(FLOATS) if name == "times_s" else rng.choice((0, 1, 99))),
        rng.choice([None, 7, "x", b"12345678", [1, 2], {}]),
    ]
    batch[name] = ways[rng.randrange(len(ways))]
    if rng.random() < 0.1:
        del batch[name]
    return SimpleNamespace(**batch) if rng.random() < 0.95 else rng.choice([None, 3, batch])


def made(rng: random.Random) -> Any:
    def number() -> int:
        return rng.choice(NUMBERS)

    def real() -> float:
        return rng.choice(FLOATS)

    policy = rng.choice(("default", "lru", "lfu", "fifo", "nonsense"))
    block_tokens = rng.choice((0, 1, 16, (1 << 32) - 1))
    match rng.randrange(5):
        case 0:
            sizes = [number() for _ in range(rng.randrange(3))]
            return _core.TraceCurve(block_tokens, sizes, policy=policy)
        case 1:
            return _core.TraceSketch(block_tokens, 1, real(), sessions_max=rng.choice((None, 0)))
        case 2:
            return _core.Foresight()
        case 3:
            flash = rng.choice((None, (number(), rng.choice((None, number())), "all")))
            few = rng.choice((None, 0, 1, (1 << 32) - 1))
            return _core.StoreTwin((number(), number(), policy, 0, few, few, flash))
    tiers = rng.sample(("device", "host", "dram", "flash", "object", ""), rng.randrange(3))
    admission, source = rng.random() < 0.3, rng.random() < 0.3
    return _core.Simulation(
        [(tier, number(), policy, rng.choice((None, real())), admission, source) for tier in tiers],
        block_tokens=block_tokens,
        replicas=rng.choice((0, 1, 2, 1 << 40)),
        router=rng.choice(("round-robin", "sticky", "prefix-hash", "kv-aware", "")),
        prefix_blocks=rng.choice((0, 3)),
        shared=rng.random() < 0.5,
        costs=rng.choice((COSTS, (real(), real(), real(), real(), [(real(), 1.0)] * 5))),
        planned=rng.random() < 0.5,
        foresight=rng.choice((None, None, _core.Foresight())),
        node=rng.choice((None, NODE)),
    )


def refused(call: Any) -> bool:
    """Whether it was refused; anything but a reason for the caller is a failure."""
    try:
        call()
    except KeepwarmError as error:
        if "internal fault" in str(error):
            raise
        return True
    except (TypeError, OverflowError):  # a number that is none, or has no place in 64 bits
        return True
    return False


def all_finite(values: Any) -> bool:
    if isinstance(values, dict):
        return all_finite(list(values.values()))
    if isinstance(values, bytes):
        return True
    return all(map(all_finite, values)) if isinstance(values, list | tuple) else np.isfinite(values)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_that_is_wrong_is_a_fault(seed: int) -> None:
    rng = random.Random(seed)
    outcomes = {True: 0, False: 0}
    for _ in range(500):
        held: list[Any] = []
        if refused(lambda held=held: held.append(made(rng))):
            outcomes[True] += 1
            continue
        core = held[0]
        take = core.serve if isinstance(core, _core.StoreTwin) else core.feed
        for _ in range(3):
            batch = spoiled(rng) if rng.random() < 0.7 else SimpleNamespace(**columns(rng))
            outcomes[refused(lambda take=take, batch=batch: take(batch))] += 1
        match core:
            case _core.TraceCurve():
                refused(lambda core=core: core.points([None, 0, 1 << 63, 7]))
                assert refused(lambda core=core: core.points([0]))
                assert all_finite(core.points([None]))
            case _core.TraceSketch():
                _, estimates, _, hottest = core.figures()
                assert all_finite(estimates), estimates
                assert all_finite(hottest)
            case _core.StoreTwin():
                refused(lambda core=core: core.block_keys(rng.choice((None, b"", np.zeros(3)))))
                assert all_finite(core.counts())
            case _core.Simulation():
                found, _ = core.finish()
                for name in ("restore_s", "wait_s", "prefill_s"):
                    assert np.isfinite(np.frombuffer(found[name])).all()
                assert refused(core.finish)
    assert min(outcomes.values()) > 100, outcomes


@pytest.mark.parametrize(
    ("name", "column", "says"),
    [
        ("times_s", np.array([2.0, 1.0]), "run back"),
        ("times_s", np.array([0.0, np.nan]), "finite"),
        ("times_s", np.array([0.0, 1.0]).astype(">f8"), "8 byte numbers"),
        ("offsets", np.array([0, 3, 2], np.uint64), "grow"),
        ("block_ids", np.zeros((1, 2), np.uint64), "contiguous"),
        ("sessions", None, "sessions"),
    ],
)
def test_a_batch_that_is_wrong_is_refused_by_all(name: str, column: Any, says: str) -> None:
    twos = dict.fromkeys(("sessions", "tenants"), np.zeros(2, np.uint64))
    tokens = dict.fromkeys(("input_tokens", "output_tokens"), np.ones(2, np.uint32))
    right = {
        "times_s": np.array([0.0, 1.0]),
        **twos,
        **tokens,
        "offsets": np.array([0, 1, 2], np.uint64),
        "block_ids": np.zeros(2, np.uint64),
    }
    wrong = right | {name: column}
    if column is None:
        del wrong[name]
    for take in (
        _core.TraceCurve(16, []).feed,
        _core.TraceSketch(16, 1, 0.5).feed,
        _core.Foresight().feed,
        _core.StoreTwin(NODE).serve,
        _core.Simulation([], block_tokens=16, costs=COSTS).feed,
    ):
        take(SimpleNamespace(**right))
        with pytest.raises(ArgumentError, match=says):
            take(SimpleNamespace(**wrong))


@pytest.mark.parametrize(
    ("node", "says"),
    [
        ((1 << 60, *NODE[1:]), "takes up to"),
        ((1 << 43, *NODE[1:]), "entries"),
        ((1 << 20, 4096, "lru", 0, 0, None, None), "max_blocks is 0"),
        ((*NODE[:-1], (1 << 62, 1 << 20, "all")), "give 5242880 to"),
        ((*NODE[:-1], (1 << 30, (1 << 63) - 1, "all")), "whole pages"),
        ((*NODE[:-1], (1 << 30, 100_000, "all")), "whole pages"),
    ],
)
def test_a_node_that_no_machine_could_model_is_refused(node: Any, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        _core.StoreTwin(node)
    with pytest.raises(ArgumentError, match=says):
        _core.Simulation([], block_tokens=16, costs=COSTS, node=node)


def test_many_nodes_together_are_refused_where_one_is_not() -> None:
    node = (1 << 34, *NODE[1:])
    _core.Simulation([], block_tokens=16, costs=COSTS, node=node, replicas=4096)
    with pytest.raises(ArgumentError, match="4096 nodes"):
        _core.Simulation([], block_tokens=16, costs=COSTS, node=node, replicas=4096, shared=False)
