"""The tier's parts alone: settings, places, rows, the pool's name. No engine runs here."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from adapters import fake_session
from keepwarm import IdentityError
from keepwarm.adapter.reasons import Recomputed
from keepwarm.adapter.settings import SettingsError
from keepwarm.adapter.transfers import Done, Job
from keepwarm.connectors.vllm import facts, guard, host_spec
from keepwarm.connectors.vllm.asking import Asking
from keepwarm.connectors.vllm.jobs import Jobs
from keepwarm.connectors.vllm.places import Places, engine_hash, group_of
from keepwarm.connectors.vllm.rows import Pool, Rows, own_bytes
from keepwarm.connectors.vllm.tier import KeepwarmTier
from keepwarm.outcomes import Outcome, Status
from keepwarm.planner import Planner
from keepwarm.testing import namespace
from vllm.v1.kv_offload.base import ReqContext, make_offload_key
from vllm.v1.kv_offload.tiering.base import TransferJob

CHUNK = 32


def view_of(rows: Any) -> memoryview:
    return memoryview(rows)


def tier(**settings: object) -> KeepwarmTier:
    view = view_of(np.zeros((2, 64), np.int8))
    return KeepwarmTier(SimpleNamespace(config=None), view, "KeepwarmTier", **settings)


def test_an_unknown_setting_refuses_to_start_and_names_the_nearest() -> None:
    with pytest.raises(SettingsError, match="did you mean lookup_deadline_s"):
        tier(lookup_deadline=1)


@pytest.mark.parametrize("said", ["near", 7, ""])
def test_a_locality_that_vllm_does_not_know_is_named(said: object) -> None:
    with pytest.raises(SettingsError, match=r"KeepwarmTier: locality is .*: give LOCAL or REMOTE"):
        tier(locality=said)


def test_lora_is_refused_and_the_mode_that_can_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SimpleNamespace(lora_config=object())
    monkeypatch.setattr(facts, "config_of", lambda _: (config, None))
    with pytest.raises(SettingsError, match="KeepwarmConnector"):
        tier()


def context_of(groups: int, blocks: int) -> ReqContext:
    """As vLLM notes them."""
    context = ReqContext(req_id="r")
    for group in range(groups):
        for block in range(blocks):
            key = make_offload_key(block.to_bytes(32, "big"), group)
            context.set_offload_key_position(key, (block + 1) * CHUNK)
    return context


def test_neighbours_become_one_prompt_with_the_heads_of_its_runs() -> None:
    places, names = Places(CHUNK, (0,), 4), namespace(run_blocks=4)
    context = context_of(1, 11)
    keys = list(context._offload_key_positions)
    whole = names.place(names.engine_keys([key[:-4] for key in keys]))
    assert places.from_here_on(keys[5], context) == keys[5:]
    assert places.prompts(keys[5:], context, names) == [whole[5:]]
    apart = places.prompts([*keys[1:3], *keys[6:10]], context, names)
    assert apart == [whole[1:3], whole[6:10]]


def test_groups_are_keys_of_their_own_and_have_no_runs() -> None:
    places, names = Places(CHUNK, (0, 1), 1), namespace(run_blocks=1)
    context = context_of(2, 3)
    keys = list(context._offload_key_positions)
    asked = places.from_here_on(keys[1], context)
    assert asked == [*keys[1:3], *keys[3:]]
    assert places.ordered({keys[4], keys[2], keys[1]}, context) == [keys[1], keys[2], keys[4]]
    (prompt,) = places.prompts(keys, context, names)
    assert prompt.keys[:48] != prompt.keys[48:]
    assert (group_of(keys[4]), engine_hash(keys[4])) == (1, 1)


def spec(lengths: dict[int, int], workers: int = 1, **changes: Any) -> tuple[Any, Any]:
    """A spec and a cache whose groups have so many layers of 4,096 bytes."""
    part = 4096 * max(lengths.values())
    parallel = SimpleNamespace(world_size=workers)
    groups = tuple(
        SimpleNamespace(group_id=group, layer_names=[f"layer.{n}" for n in range(layers)])
        for group, layers in lengths.items()
    )
    config = SimpleNamespace(canonical_layout=False, parallel=parallel, groups=groups)
    named = {"page_size_bytes": 4096, "unpadded_page_size_bytes": 4096} | changes
    page = SimpleNamespace(**named)
    cache = SimpleNamespace(
        hisparse_host_num_blocks=None,
        kv_cache_groups=[SimpleNamespace(kv_cache_spec=page) for _ in groups],
    )
    found = SimpleNamespace(
        config=config, replicated_layout=False, cpu_page_size_per_worker=part, blocks_per_chunk=1
    )
    return found, cache


def test_a_shorter_groups_tail_is_not_its_own() -> None:
    assert own_bytes(*spec({0: 2, 1: 2, 2: 1})) == {0: 8192, 1: 8192, 2: 4096}
    assert own_bytes(*spec({0: 2}, workers=2)) == {0: 16384}


def test_rows_whose_own_bytes_cannot_be_told_are_refused_by_group() -> None:
    with pytest.raises(IdentityError, match="group 1 fills 4096"):
        own_bytes(*spec({0: 2, 1: 1}, workers=2))
    padded = spec({0: 2}, page_size_padded=4096, unpadded_page_size_bytes=4000)
    with pytest.raises(IdentityError, match=r"group 0 .*layer\.0 to layer\.1.* pads its pages"):
        own_bytes(*padded)


def test_rows_are_the_pools_own_memory() -> None:
    memory = np.zeros((4, 4096), np.int8)
    pool = Pool(view_of(memory), {0: 4000, 1: 1000})
    pointer, length = pool.place(3, 1)
    assert (pointer - memory.ctypes.data, length) == (3 * 4096, 1000)
    with pytest.raises(IndexError):
        pool.place(4, 0)
    rows = Rows([pool.place(n, 0) for n in range(4)])
    assert rows.step_blocks == (1 << 20) // 4000
    assert rows.buffers(1, 2) == [pool.place(1, 0), pool.place(2, 0)]


def test_a_job_is_over_when_what_could_be_started_of_it_is() -> None:
    session, _ = fake_session()
    started: list[Job] = []

    def load(job: Job) -> bool:
        if started:
            raise RuntimeError("no memory")
        started.append(job)
        return True

    pool = Pool(view_of(np.zeros((4, 64), np.int8)), {0: 64})
    halves: Any = SimpleNamespace(load=load)
    jobs = Jobs(session, halves, pool, Places(CHUNK, (0,), session.namespace.run_blocks))
    context = context_of(1, 8)
    keys = list(context._offload_key_positions)
    apart = [*keys[1:3], *keys[6:8]]
    with pytest.raises(RuntimeError):
        jobs.submit(TransferJob(5, apart, np.arange(4), True, context), 1.0)
    assert jobs.take() == []  # a part is under way
    fine = [Outcome(Status.OK)] * 2
    jobs.absorb([Done(started[0].id, True, fine, 128, 0.1, 0.0)])
    (ended,) = jobs.take()
    assert (ended.result.job_id, ended.result.successful_keys) == (5, set(keys[1:3]))
    assert len(jobs) == 0
    session.close()


def test_names_of_pools_whose_engine_was_killed_go_with_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_spec, "SHARED", tmp_path)
    old, held, young, other = (
        tmp_path / f"vllm_offload_{name}.mmap"
        for name in ("keepwarm_old", "keepwarm_held", "keepwarm_young", "other")
    )
    past = time.time() - 2 * host_spec.STALE_S
    for path in (old, held, young, other):
        path.write_bytes(b"x")
        if path is not young:
            os.utime(path, (past, past))
    with held.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        host_spec._sweep()
    assert [path.exists() for path in (old, held, young, other)] == [False, True, True, True]


def started(limit: Recomputed | None = None, **blocks: Any) -> tuple[Planner, float]:
    """A planner that had four blocks restored, after a request got so much; and what it had known
    of the tier's rate."""
    planner = Planner()
    for _ in range(5):
        planner.prefill_step(0, 1024, 100.0)
        planner.restored("dram", 4096, 1e-5)
    before = planner.rate("dram", 4096) or 0.0
    assert planner.plan("r", 0, ["dram"] * 4, 32, 1024).blocks == 4
    keys = list(context_of(1, 4)._offload_key_positions)
    asking = Asking(SimpleNamespace(req_id="r"), keys=keys, limit=limit)
    asking.began_s = asking.decided_s = time.monotonic() - 1.0
    asking.landed = dict.fromkeys(keys[: blocks.get("landed", 0)], "dram")
    asking.failed = dict.fromkeys(keys[2:], blocks["failed"]) if "failed" in blocks else {}
    KeepwarmTier._started(SimpleNamespace(planner=planner), asking)  # type: ignore[arg-type]
    return planner, before


def test_a_restore_that_brought_nothing_is_told_to_the_planner() -> None:
    """A node that answers lookups and delivers nothing would hold each request for a deadline."""
    planner, before = started(failed=Recomputed.DEADLINE)
    assert planner.figures()["lost_blocks"] == 4
    assert (planner.rate("dram", 4096) or 0.0) < before / 10


def test_a_full_host_pool_says_nothing_of_a_tiers_speed() -> None:
    for planner, before in (
        started(landed=2, failed=Recomputed.HOST_POOL_FULL),
        started(landed=2, limit=Recomputed.HOST_POOL_FULL),
    ):
        assert planner.rate("dram", 4096) == before
        assert planner.figures()["lost_blocks"] == 0


def test_each_fault_is_shown_once_in_a_process_of_two_roles() -> None:
    guard.unshown()
    guard.note("here", RuntimeError("a fault"))
    assert [guard.unshown(), guard.unshown()] == [1, 0]
    guard.faults.clear()
    assert guard.unshown() == 0
