"""Every prompt token once: the parts are the whole, whatever happens in which order."""

from __future__ import annotations

import random

import pytest
from keepwarm.adapter.accounting import Accounting, reconcile
from keepwarm.adapter.reasons import Recomputed


def test_a_request_is_counted_at_its_first_output() -> None:
    account = Accounting(block_tokens=16)
    account.begin("a", 100)
    account.device("a", 16)
    account.restored("a", "dram", 32)
    account.restored("a", "flash", 16)
    account.blocks("a", [True] * 3 + [False, True], 3, Recomputed.EVICTED, 16)
    assert account.totals().prompt == 0
    account.finish("a")
    account.finish("a")
    totals = account.totals()
    assert totals.sums()
    assert totals.restored == {"dram": 32, "flash": 16}
    # 36 are left: a block evicted, one behind it, and 4 that fill none.
    assert totals.recomputed == {
        Recomputed.EVICTED: 16,
        Recomputed.AFTER_GAP: 16,
        Recomputed.PARTIAL_BLOCK: 4,
    }


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_the_parts_are_the_whole(seed: int) -> None:
    rng = random.Random(seed)
    account = Accounting(block_tokens=16)
    prompts, counted = {}, 0
    for _ in range(2_000):
        request = str(rng.randrange(30))
        tokens = rng.randrange(0, 200)
        match rng.randrange(10):
            case 0 | 1:
                if not account.is_open(request):
                    prompts[request] = rng.randrange(1, 400)
                account.begin(request, prompts.get(request, 1))
            case 2:
                account.device(request, tokens)
            case 3:
                account.host(request, tokens)
            case 4:
                account.restored(request, rng.choice(["dram", "flash", None]), tokens)
            case 5:
                hits = [rng.random() < 0.8 for _ in range(rng.randrange(12))]
                why = rng.choice([None, *Recomputed])
                account.blocks(request, hits, rng.randrange(12), why, 16)
                account.missed(request, rng.choice(list(Recomputed)), tokens)
            case 6:
                account.load_failed(request, tokens)
            case 7:
                account.preempted(request)
            case _:
                aborted = rng.random() < 0.3
                if account.is_open(request) and not aborted:
                    counted += prompts[request]
                account.finish(request, aborted=aborted)
        totals = account.totals()
        assert totals.sums(), f"seed {seed}"
        assert totals.prompt == counted, f"seed {seed}"
        assert min([0, *totals.recomputed.values(), *totals.restored.values()]) == 0


def test_reconcile_names_what_differs() -> None:
    account = Accounting(block_tokens=16)
    account.begin("a", 64)
    account.device("a", 16)
    account.restored("a", "dram", 32)
    account.load_failed("a", 16)
    account.finish("a")
    totals = account.totals()
    engine = {
        "local_cache_hit": 16,
        "external_kv_transfer": 32,
        "local_compute": 16,
        "prompt_tokens": 64,
    }
    assert reconcile(totals, engine, host_is_external=False) == {}
    engine["external_kv_transfer"] = 48
    assert reconcile(totals, engine, host_is_external=True) == {"external_kv_transfer": (32, 48)}


@pytest.mark.parametrize("seed", range(10))
def test_each_block_of_an_answer_has_one_reason(seed: int) -> None:
    rng = random.Random(seed)
    for number in range(50):
        account = Accounting(block_tokens=16)
        hits = [rng.random() < 0.9 for _ in range(rng.randrange(1, 40))]
        prefix = next((at for at, hit in enumerate(hits) if not hit), len(hits))
        chosen = rng.choice([0, prefix, rng.randrange(prefix + 1)])
        tail = rng.randrange(1, 16)
        account.begin("a", 16 * len(hits) + tail)
        account.restored("a", "dram", 16 * chosen)
        account.blocks("a", hits, chosen, Recomputed.EVICTED, 16)
        account.finish("a")
        expected = {
            Recomputed.PLANNER: 16 * (prefix - chosen),
            Recomputed.EVICTED: 16 if prefix < len(hits) else 0,
            Recomputed.AFTER_GAP: 16 * max(0, len(hits) - prefix - 1),
        }
        found = account.totals().recomputed
        for reason, tokens in expected.items():
            assert found.get(reason, 0) == tokens, f"seed {seed}, case {number}"
        # The rest of the prompt: a block that is not full, or the last token alone.
        left = {Recomputed.PARTIAL_BLOCK, Recomputed.LAST_TOKEN}
        assert sum(found.get(reason, 0) for reason in left) == tail
        assert set(found) <= {*expected, *left}


def test_news_is_told_once() -> None:
    books = Accounting()
    assert not books.has_news()
    books.begin("a", 10)
    assert not books.has_news()
    books.finish("a")
    assert (books.has_news(), books.has_news()) == (True, False)
