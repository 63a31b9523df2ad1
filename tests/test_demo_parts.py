"""The demo's arithmetic: the ledger, the plan, the verdict, the picture. No process is started."""

from __future__ import annotations

import importlib
import io
import json
import os
import random
import signal
import xml.etree.ElementTree as ET
from array import array
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from keepwarm import Outcome, Reason, Status
from keepwarm.demo import ProcessError, chart, plan, report, summary
from keepwarm.demo.ledger import Ledger, account, askable_blocks, usable
from keepwarm.demo.run import Ideal, Record, Served
from keepwarm.testing.traces import Request
from rich.console import Console

command = importlib.import_module("keepwarm.cli.demo")  # its name in the package is the function
SEED = int(os.environ.get("KEEPWARM_TEST_SEED", "20261201"))
OK = Outcome(Status.OK, None)
PENDING = Outcome(Status.PENDING, None)


def missed(reason: Reason) -> Outcome:
    return Outcome(Status.MISS, reason)


def test_every_token_has_one_place() -> None:
    ledger = account(10 * 64 + 5, 64, "evicted", ["dram"] * 4, [OK] * 4)
    assert ledger.restored == {"dram": 256}
    assert ledger.missed == {"evicted": 64, "after_gap": 320, "partial_block": 5}
    assert ledger.behind == {"evicted": 320}
    assert ledger.problem() is None


def test_the_last_token_is_never_restored() -> None:
    assert askable_blocks(128, 64) == 1
    ledger = account(128, 64, None, ["dram"], [OK])
    assert ledger.missed == {"last_token": 64}
    assert account(0, 64, None, [], []).asked == 0


def test_an_unanswered_lookup_says_so_for_all_blocks() -> None:
    ledger = account(640, 64, "store_down", [], [])
    assert ledger.missed == {"store_down": 576, "last_token": 64}


def test_a_get_that_fails_in_the_middle() -> None:
    outcomes = [OK, missed(Reason.DEADLINE), OK, PENDING]
    ledger = account(7 * 64 + 1, 64, "absent", ["dram"] * 4, outcomes)
    assert ledger.restored == {"dram": 64}
    expected = {"deadline": 64, "after_gap": 256, "pending": 64, "partial_block": 1}
    assert ledger.missed == expected
    assert usable(outcomes) == 1


def test_random_requests_add_up() -> None:
    print(f"KEEPWARM_TEST_SEED={SEED}")
    rng = random.Random(SEED)
    total = Ledger()
    known = [OK] * 8 + [PENDING] + [missed(Reason(reason)) for reason in FROM_A_NODE]
    for _ in range(2_000):
        tokens = rng.randrange(0, 2_000)
        asked = askable_blocks(tokens, 16)
        prefix = rng.randrange(0, asked + 1)
        outcomes = rng.choices(known, k=prefix)
        miss = rng.choice(["absent", "evicted", "store_down", "deadline", "pending"])
        ledger = account(tokens, 16, miss if prefix < asked else None, ["dram"] * prefix, outcomes)
        assert ledger.problem() is None
        assert Ledger.from_json(ledger.to_json()) == ledger
        total.add(ledger)
    assert total.problem() is None


FROM_A_NODE = ("absent", "evicted", "expired", "epoch", "quota", "corrupt", "deadline")


def test_a_sum_that_is_wrong_is_named() -> None:
    ledger = Ledger(asked=10)
    ledger.missed["absent"] = 9
    assert ledger.problem() == "tokens do not add up: 9 accounted for, 10 asked"
    ledger.missed["bad luck"] = 1
    assert ledger.problem() == "reasons outside the closed list: ['bad luck']"


def small_plan() -> plan.Plan:
    return plan.make(plan.DemoConfig(source="generated", sessions=3, turns=6))


def test_turns_bounce_and_the_memory_is_too_small() -> None:
    made = small_plan()
    assert made.trace.synthetic
    assert made.arena_bytes < made.working_set_bytes
    by_session: dict[int, list[int]] = {}
    for turn in made.turns:
        by_session.setdefault(turn.request.session, []).append(turn.replica)
    for replicas in by_session.values():
        assert all(one != other for one, other in pairwise(replicas))


def test_without_recorded_sessions_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KEEPWARM_TRACES", "/nowhere")
    assert plan.choose_trace(plan.DemoConfig(sessions=1, turns=2)).synthetic
    with pytest.raises(ValueError, match="no recorded sessions"):
        plan.choose_trace(plan.DemoConfig(source="recorded"))


def test_the_ideal_memory_knows_everything_asked_before() -> None:
    ideal = Ideal(64)
    first = Request(0, 0.0, 300, 1, 64, array("Q", [1, 2, 3, 4, 5]))
    longer = Request(0, 1.0, 400, 1, 64, array("Q", [1, 2, 3, 4, 6, 7]))
    assert ideal.tokens(plan.Turn(0, 0, first)) == 0
    assert ideal.tokens(plan.Turn(1, 1, first)) == 256
    assert ideal.tokens(plan.Turn(2, 0, longer)) == 256
    assert ideal.most_tokens(plan.Turn(2, 0, longer)) == 256


def test_a_turn_that_ran_meanwhile_may_have_stored_what_another_found() -> None:
    ideal = Ideal(64)
    same = Request(0, 0.0, 300, 1, 64, array("Q", [1, 2, 3, 4, 5]))
    one, two = plan.Turn(0, 0, same), plan.Turn(1, 1, same)
    assert ideal.tokens(one) == 0
    assert ideal.most_tokens(one) == 0
    assert ideal.tokens(two) == 256
    assert ideal.most_tokens(one) == 256


COUNTED = ("lookup_hits", "reads", "read_bytes", "stored", "stored_bytes")


def recorded() -> Record:
    """A run in which the first turn stores, the node is killed, and the third turn restores."""
    made = small_plan()
    record = Record(made, started=0.0, idle=2.0, killed=2.5, restarted=4.0, ready=4.5, ended=10.0)
    block, size = made.trace.block_tokens, made.config.block_bytes
    kept = {"evicted": 7, "flash_recovered": 3, "flash_recovery_seconds": 0.1}
    lives: list[dict[str, Any]] = [dict.fromkeys(COUNTED, 0) | kept for _ in range(2)]
    for at, turn in enumerate(made.turns):
        tokens = turn.request.input_tokens
        start = 10.0 * at / len(made.turns)
        blocks = askable_blocks(tokens, block)
        down, hit = 2.5 < start < 4.0, start > 5.0
        prefix = blocks if hit else 0
        miss = None if hit else "store_down" if down else "absent"
        looked = {"blocks": blocks, "hits": prefix, "miss": miss}
        calls: list[dict[str, Any]] = [
            {"kind": "lookup", "start": start, "end": start + 0.01, **looked}
        ]
        got: dict[str, Any] = {"blocks": prefix, "bytes": prefix * size, "outcomes": {"ok": prefix}}
        if hit:
            calls.append({"kind": "get", "start": start, "end": start + 0.1, **got})
        put: dict[str, Any] = {"blocks": 1, "bytes": 0 if down else size}
        put |= {"outcomes": {"store_down" if down else "stored": 1}}
        calls.append({"kind": "put", "start": start + 0.1, "end": start + 0.11, **put})
        ledger = account(tokens, block, miss, ["dram"] * prefix, [OK] * prefix)
        answer = {"started": start, "ended": start + 0.2, "calls": calls}
        answer |= {"bytes_verified": prefix * size, "wrong_bytes": 0}
        record.served.append(Served(turn, answer, ledger, blocks * block, blocks * block))
        if start < 2.0 or start > 4.0:
            life = lives[start > 4.0]
            life["stored"] += 1
            life["stored_bytes"] += size
            life["lookup_hits"] += prefix
            life["reads"] += prefix
            life["read_bytes"] += prefix * size
    record.stat_before_kill, record.stat_at_end = lives
    record.stat_after_stop = dict(kept)
    resident = {"VmRSS": 3 << 20, "RssAnon": 1 << 20, "RssShmem": 2 << 20}
    record.resident = {"node at start": resident}
    record.probe = {"get": [1e9, 2e9, 3e9], "put": [1e9] * 3, "memcpy": [2e9] * 3, "wrong_bytes": 0}
    record.machine = {"cores": 2, "load_1m": 0.5, "load_5m": 0.5}
    return record


def test_a_good_run_has_no_problem() -> None:
    record = recorded()
    found = summary.summarise(record)
    assert found.problems == []
    assert found.first_hit_s is not None
    assert found.first_hit_s > 2.0
    assert {row["what"] for row in found.reconciled} == set(vars_moved())


def test_a_node_may_have_counted_what_its_client_gave_up_on() -> None:
    record = recorded()
    lookup = record.served[-1].answer["calls"][0]
    lookup |= {"miss": "deadline", "hits": 0}
    assert summary.summarise(record).problems == []
    record.stat_at_end["lookup_hits"] += lookup["blocks"]
    assert any("lookup_hits" in problem for problem in summary.summarise(record).problems)


def vars_moved() -> set[str]:
    got = {"got_blocks", "restored_blocks", "got_bytes"}
    return got | {"lookup_hits", "stored_blocks", "stored_bytes"}


def spoil_sum(record: Record) -> None:
    record.served[0].ledger.asked += 1


def spoil_bytes(record: Record) -> None:
    record.served[-1].answer["wrong_bytes"] = 3


def spoil_deadline(record: Record) -> None:
    record.served[-1].answer["calls"][-1]["end"] += 2.5


def spoil_counters(record: Record) -> None:
    record.stat_at_end["reads"] += 1


def spoil_probe(record: Record) -> None:
    record.probe["wrong_bytes"] = 5


def spoil_ideal(record: Record) -> None:
    """Calls all that one turn missed restored: its sums still add up."""
    ledger = record.served[0].ledger
    ledger.restored["dram"] += ledger.missed_tokens()
    ledger.missed.clear()
    ledger.behind.clear()


def spoil_restored(record: Record) -> None:
    """As many reads as before, of which the ledgers claim one block less."""
    ledger, block = record.served[-1].ledger, record.plan.trace.block_tokens
    ledger.restored["dram"] -= block
    ledger.missed["absent"] += block


def spoil_recovery(record: Record) -> None:
    for served in record.served:
        calls = served.answer["calls"]
        served.answer["calls"] = [call for call in calls if call["kind"] != "get"]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (spoil_sum, "tokens do not add up"),
        (spoil_bytes, "3 wrong bytes"),
        (spoil_deadline, "with a deadline of 1.00 s"),
        (spoil_counters, "the node counts"),
        (spoil_probe, "5 wrong bytes"),
        (spoil_ideal, "were ever stored"),
        (spoil_restored, "restored_blocks, its clients"),
        (spoil_recovery, "did not find the node again"),
    ],
)
def test_what_does_not_add_up_is_named(spoil: object, said: str) -> None:
    record = recorded()
    assert callable(spoil)
    spoil(record)
    assert any(said in problem for problem in summary.summarise(record).problems)


def test_report_and_picture_are_complete() -> None:
    record = recorded()
    found = summary.summarise(record)
    console = Console(file=io.StringIO(), width=140)
    report.show(console, record, found)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for words in ("tokens asked", "wrong bytes", "everything adds up", "store_down", "memcpy"):
        assert words in text
    assert json.loads(json.dumps(report.plain(record, found)))["problems"] == []
    root = ET.fromstring(chart.svg(record, found))
    assert root.tag.endswith("svg")
    assert "kill -9" in chart.svg(record, found)


def test_a_folder_that_cannot_be_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.demo(out=Path("/proc/x/out")) == 2
    assert "keepwarm: out is /proc/x/out: " in capsys.readouterr().err


def test_what_went_wrong_is_shown_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fails(*_: Any, **__: Any) -> int:
        raise ProcessError("model llama[/x] is gone")

    monkeypatch.setattr(command, "_run", fails)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert command.demo(out=tmp_path) == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "the demo failed: model llama[/x] is gone" in capsys.readouterr().out


def test_a_terminal_of_few_letters_gets_the_report() -> None:
    record, raw = recorded(), io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    command._say_what_fits(stream)
    report.show(Console(file=stream, width=140), record, summary.summarise(record))
    stream.flush()
    assert b"everything adds up" in raw.getvalue()
