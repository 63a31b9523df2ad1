"""`keepwarm bench`: that it compares like with like, and says what it says it says.

No floor of speed is asserted here: a shared machine decides those. `make bench` does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from keepwarm import ArgumentError, _core, cli
from keepwarm.bench import FIGURES, names, report
from keepwarm.bench.limits import BareServer, Blocks, Shape, copy
from keepwarm.bench.machine import cpu_seconds, describe
from keepwarm.bench.measure import GROUPS, run
from keepwarm.bench.pairs import Round, Spread, UnlikeError, costs, interleave, speeds

ROOT = Path(__file__).resolve().parent.parent
SEED = int(os.environ.get("KEEPWARM_TEST_SEED", "20261201"))
SHAPE = Shape(64 << 10, 16, 48, SEED)
# What others rely on: the names of an object that programs read.
PROMISED = {
    *("shm_get_over_memcpy", "shm_put_over_memcpy", "verify_on_over_off"),
    *("tcp_get_over_socket", "tcp_put_over_socket"),
    *("tcp_get_cpu_over_socket", "tcp_put_cpu_over_socket", "tls_get_over_rustls"),
    *("flash_get_over_raw", "flash_put_over_raw", "lookup_8192_p50_ms"),
    *("index_ns_per_key_1m", "index_ns_per_key_8m", "small_block_ratio"),
    *("local_get_over_mooncake", "tcp_get_over_mooncake"),
    *("local_get_over_redis", "local_get_over_lmcache"),
}


def test_the_catalogue_has_what_is_promised_and_each_has_one_group() -> None:
    known = [figure.name for figure in FIGURES]
    assert set(known) >= PROMISED
    measured = [name for group in GROUPS for name in group.names]
    assert sorted(measured) == sorted(known)


def test_names_may_be_beginnings() -> None:
    assert names(["tcp_get_over_s", "keys"]) == ["tcp_get_over_socket", "keys_128k_tokens_ms"]
    assert names() == [figure.name for figure in FIGURES]
    with pytest.raises(ArgumentError, match="only is 'tpc': give a figure"):
        names(["tpc"])


def test_rounds_alternate_and_the_first_pair_only_warms_up() -> None:
    order: list[str] = []

    def limit(number: int) -> Round:
        order.append(f"limit {number}")
        return Round(9.0 if number == 0 else 1.0, 8, 1.0)

    def ours(number: int) -> Round:
        order.append(f"ours {number}")
        return Round(2.0 * number or 9.0, 8, 1.5)

    pairs = interleave(3, limit, ours)
    assert order == [f"{who} {number}" for number in range(4) for who in ("limit", "ours")]
    speed, cost = speeds(pairs), costs(pairs)
    assert (speed.median, speed.min, speed.max, speed.pairs) == (1 / 4, 1 / 6, 1 / 2, 3)
    assert (cost.median, cost.pairs) == (1.5, 3)


def test_a_pair_of_unlike_bytes_is_refused() -> None:
    with pytest.raises(UnlikeError, match="the limit moved 8 bytes and ours 7"):
        interleave(1, lambda _: Round(1.0, 8), lambda _: Round(1.0, 7))


@pytest.mark.parametrize("way", ["memcpy", "hashed", "unhashed"])
def test_a_copy_moves_the_round_and_nothing_else(way: str) -> None:
    source, to = Blocks(SHAPE, fill=True), Blocks(SHAPE)
    to.wipe()
    taken = copy(way, to, source, 3)
    first = SHAPE.first(3)
    assert taken.nbytes == SHAPE.nbytes == 1 << 20
    assert to.content(first) == source.content(first)
    beside = first - SHAPE.blocks if first >= SHAPE.blocks else first + SHAPE.blocks
    assert not any(to.content(beside))


def test_a_limit_that_is_slower_shows_in_the_ratio() -> None:
    """Eight times the work for the limit: whatever the machine does, ours looks faster by far."""
    source, to = Blocks(SHAPE, fill=True), Blocks(SHAPE)

    def slow(number: int) -> Round:
        seconds = sum(copy("memcpy", to, source, number).seconds for _ in range(8))
        return Round(seconds, SHAPE.nbytes)

    def fast(number: int) -> Round:
        return copy("memcpy", to, source, number)

    assert speeds(interleave(15, slow, fast)).median > 2 * speeds(interleave(15, fast, fast)).median


@pytest.mark.parametrize("is_tcp", [False, True])
@pytest.mark.parametrize("streams", [1, 3])
def test_the_bare_server_moves_the_round(folder: Path, is_tcp: bool, streams: int) -> None:
    source, to = Blocks(SHAPE, fill=True), Blocks(SHAPE)
    at = None if is_tcp else folder / "bare"
    with BareServer(SHAPE, at, streams=streams) as bare:
        put = bare.put(source, 5)
        to.wipe()
        got = bare.get(to, 5)
    assert to.content(SHAPE.first(5)) == source.content(SHAPE.first(5))
    for taken in (put, got):
        assert taken.nbytes == SHAPE.nbytes
        assert 0 < taken.seconds < 60
        assert taken.cpu_s is not None
        assert taken.cpu_s > 0


def test_limits_refuse_what_they_cannot_use() -> None:
    with pytest.raises(ArgumentError, match='way is "teleport": pass memcpy'):
        _core.limit_copy("teleport", bytearray(1), b"1", 1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        _core.LimitStreams([1 << 20])
    with pytest.raises(ArgumentError, match="descriptor is -1"):
        _core.LimitStreams([-1])


def test_the_clock_of_another_process_is_its_own() -> None:
    before, began = cpu_seconds(os.getpid()), time.process_time()
    sum(range(1_000_000))
    mine, other = cpu_seconds(os.getpid()) - before, time.process_time() - began
    assert mine == pytest.approx(other, abs=0.05)
    assert mine > 0


def _detail(name: str, median: float | None) -> dict[str, Any]:
    figure = next(figure for figure in FIGURES if figure.name == name)
    facts = {"floor": figure.floor, "passed": figure.passes(median), "command": "keepwarm bench"}
    if median is None:
        return {"median": None, **facts, "reason": "the peer is not installed"}
    return {"median": median, "min": 0.1, "max": 20.0, "pairs": 15, **facts}


def test_the_table_says_pass_missed_and_none() -> None:
    given = {
        "tcp_get_over_socket": 0.9,
        "tcp_get_cpu_over_socket": 1.2,
        "local_get_over_redis": None,
        "unix_get_over_socket": 0.5,
    }
    details = {name: _detail(name, value) for name, value in given.items()}
    rows = {row.name: row for row in report.rows({"details": details})}
    assert {name: row.verdict for name, row in rows.items()} == {
        "tcp_get_over_socket": "pass",
        "tcp_get_cpu_over_socket": "MISSED",
        "local_get_over_redis": "-",
        "unix_get_over_socket": "-",
    }
    assert rows["tcp_get_over_socket"].spread == "0.10..20.0 of 15"
    assert rows["tcp_get_over_socket"].wanted == "≥ 0.85 (0.95)"
    assert rows["local_get_over_redis"].notes == "the peer is not installed"


def test_a_spread_is_the_middle_and_the_ends() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0, 3, {})


def test_what_cannot_be_had_is_null_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from keepwarm.bench.context import Context, Found, Group, UnavailableError

    def absent(_: Context) -> Found:
        raise UnavailableError("the peer is not installed: make bench-peers")

    monkeypatch.setattr(
        "keepwarm.bench.measure.GROUPS", (Group(("local_get_over_redis",), absent),)
    )
    result = run(["local_get_over_redis"])
    assert result["local_get_over_redis"] is None
    detail = result["details"]["local_get_over_redis"]
    assert (detail["median"], detail["passed"]) == (None, None)
    assert detail["reason"] == "the peer is not installed: make bench-peers"


def test_bench_quick(folder: Path) -> None:
    """A few figures for real: keys and sanity alone."""
    only = ("unix", "lookup", "keys", "small")
    out = folder / "result.json"
    said = subprocess.run(
        [
            *(sys.executable, "-m", "keepwarm.cli", "bench", "--quick", "--json"),
            *("--out", str(out), "--seed", str(SEED)),
            *(word for name in only for word in ("--only", name)),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert said.returncode in (0, 1), said.stderr  # 1: a floor missed on a busy machine
    result = json.loads(said.stdout)
    assert result == json.loads(out.read_text())
    measured = names(only)
    assert set(result["details"]) == set(measured)
    for name in measured:
        detail = result["details"][name]
        assert result[name] == detail["median"]
        assert 0 < detail["min"] <= detail["median"] <= detail["max"]
        assert detail["pairs"] >= 7
        assert detail["command"] == f"keepwarm bench --only {name} --quick"
        assert set(detail) >= {"floor", "goal", "passed"}
    assert 0.01 < result["unix_get_over_socket"] < 100
    assert result["machine"]["cores"] == describe()["cores"]
    assert (result["schema"], result["kind"]) == (1, "keepwarm.bench")
    assert (result["quick"], result["seed"]) == (True, SEED)


def test_an_unknown_figure_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--only", "speed"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("keepwarm: only is 'speed': give a figure")
    assert said.err.count("\n") == 1


def test_the_page_of_figures_is_made_from_the_results() -> None:
    made = subprocess.run([sys.executable, ROOT / "bench/render.py", "--check"], check=False)
    assert made.returncode == 0, "bench/README.md was edited by hand: run make bench-record"
