"""Pieces of the direct connector that need vLLM's classes and no engine."""

from __future__ import annotations

import pickle
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from adapters import fake_session
from keepwarm.connectors.vllm.direct.adapters import Adapters
from keepwarm.connectors.vllm.direct.connector import _check, _check_zeroing
from keepwarm.connectors.vllm.direct.landing import BlockPages, HostCopier, neighbours
from keepwarm.connectors.vllm.direct.layout import (
    Layout,
    UnknownLayoutError,
    check_groups,
    read_layout,
)
from keepwarm.connectors.vllm.direct.metadata import Moved, Order, Report, Step
from keepwarm.connectors.vllm.direct.stores import Stores
from keepwarm.connectors.vllm.direct.worker import Worker
from keepwarm.errors import KeepwarmError
from keepwarm.outcomes import MISSES, Outcome, Reason, Status
from keepwarm.testing.waiting import eventually
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from engine.harness import EngineLog

BLOCKS = 10
SPEC = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=32, dtype=torch.float32)
PAGE = SPEC.page_size_bytes


def config(*specs: Any) -> Any:
    groups = [
        SimpleNamespace(kv_cache_spec=spec, layer_names=["a", "b"] if len(specs) < 2 else ["a"])
        for spec in specs or (SPEC,)
    ]
    return SimpleNamespace(kv_cache_groups=groups, num_blocks=BLOCKS, hash_block_size=None)


def caches(make: Any) -> dict[str, torch.Tensor]:
    return {"a": make(), "b": make()}


def filled(*shape: int) -> torch.Tensor:
    return torch.arange(np.prod(shape), dtype=torch.float32).reshape(shape).clone()


ONE_RUN = {
    "[B, H, N, C]": lambda: filled(BLOCKS, 2, 16, 64),
    "[B, 2, N, H, D]": lambda: filled(BLOCKS, 2, 16, 2, 32),
    "permuted": lambda: filled(BLOCKS, 16, 2, 64).permute(0, 2, 1, 3),
    "smaller rows": lambda: filled(2 * BLOCKS, 2, 8, 64),
}


@pytest.mark.parametrize("name", ONE_RUN)
def test_a_page_that_is_one_run(name: str) -> None:
    layout = read_layout(caches(ONE_RUN[name]), config())
    assert layout.block_bytes == 2 * PAGE
    assert [tuple(run.shape) for run in layout.runs] == [(BLOCKS, PAGE)] * 2


def test_keys_and_values_in_halves_of_their_own_are_two_runs() -> None:
    cache = caches(lambda: filled(2, BLOCKS, 16, 2, 32))
    layout = read_layout(cache, config())
    assert [tuple(run.shape) for run in layout.runs] == [(BLOCKS, PAGE // 2)] * 4
    values = layout.runs[1][3].numpy().view(np.float32)
    assert (values == cache["a"][1, 3].numpy().ravel()).all()


def test_layers_between_each_other_are_views_of_one_memory() -> None:
    whole = filled(BLOCKS, 2, 2, 16, 64)
    layout = read_layout({"a": whole[:, 0], "b": whole[:, 1]}, config())
    assert (layout.runs[1][4].numpy().view(np.float32) == whole[4, 1].numpy().ravel()).all()


def test_an_identity_tells_orders_apart_and_not_sizes_of_machines() -> None:
    said = [read_layout(caches(make), config()).description for make in ONE_RUN.values()]
    assert len(set(said)) == len(ONE_RUN)
    larger = config()
    larger.num_blocks = 3 * BLOCKS
    assert read_layout(caches(lambda: filled(3 * BLOCKS, 2, 16, 64)), larger).description == said[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: filled(BLOCKS, 2, 16, 128)[..., :64],  # holes
        lambda: filled(2, 16, 64, BLOCKS).permute(3, 0, 1, 2),  # blocks innermost
        lambda: filled(2, 2, BLOCKS, 16, 32).permute(2, 0, 1, 3, 4),  # a run for each head
        lambda: filled(BLOCKS, 16, 2, 32),  # half of a page
        lambda: [filled(BLOCKS, 4), filled(BLOCKS, 8)],  # states
    ],
)
def test_an_unknown_layout_is_refused_with_its_description(make: Any) -> None:
    with pytest.raises(UnknownLayoutError, match=r"layer a .*does not know how to move"):
        read_layout(caches(make), config())


def test_groups_that_one_key_cannot_name_are_refused() -> None:
    window = SlidingWindowSpec(
        block_size=16, num_kv_heads=2, head_size=32, dtype=torch.float32, sliding_window=64
    )
    with pytest.raises(UnknownLayoutError, match=r"2 KV cache groups .*disable-hybrid"):
        check_groups(config(SPEC, window))
    with pytest.raises(UnknownLayoutError, match="layer a keeps a SlidingWindowSpec"):
        check_groups(config(window))
    states = MambaSpec(block_size=16, shapes=((4,),), dtypes=(torch.float32,))
    with pytest.raises(UnknownLayoutError, match="MambaSpec"):
        check_groups(config(states))
    finer = config()
    finer.hash_block_size = 8
    with pytest.raises(UnknownLayoutError, match="16 tokens and a block's hash names 8"):
        check_groups(finer)


def test_blocks_go_out_and_come_back_where_they_belong() -> None:
    cache = caches(lambda: filled(2, BLOCKS, 16, 2, 32))
    copier = HostCopier(read_layout(cache, config()))
    before = {name: each.clone() for name, each in cache.items()}
    out = BlockPages(copier, [3, 4, 9, 1], 4, None)
    out.gather(0, 4)
    kept = [bytes(row) for row in out.buffers(0, 4)]
    for each in cache.values():
        each.zero_()
    back = BlockPages(copier, [5, 6, 2, 8], 4, None)
    for row, data in zip(back.buffers(0, 4), kept, strict=True):
        row[:] = np.frombuffer(data, np.uint8)
    fine, bad = Outcome(Status.OK), MISSES[Reason.CORRUPT]
    back.landed(0, [fine, fine, bad, fine])
    for name, each in cache.items():
        for source, target in ((3, 5), (4, 6), (1, 8)):
            assert (each[:, target] == before[name][:, source]).all()
        assert not each[:, [0, 1, 2, 3, 4, 7, 9]].any()


def test_neighbours_are_copied_at_once() -> None:
    assert list(neighbours(range(5), [3, 4, 9, 7, 8])) == [(0, 3, 2), (2, 9, 1), (3, 7, 2)]
    assert list(neighbours([0, 2], [3, 4])) == [(0, 3, 1), (2, 4, 1)]
    assert list(neighbours([], [])) == []


def order(number: int, blocks: list[int]) -> Order:
    return Order(number, "r", 0, b"", 0, b"", blocks, 1.0)


def test_a_block_that_is_written_again_cancels_what_still_reads_it() -> None:
    stores = Stores()
    first, second = order(1, [4, 5]), order(2, [5, 6])
    stores.add(first, 2)
    stores.add(second, 2)
    assert stores.overwritten({7}) == []
    assert stores.overwritten({5, 9}) == [first, second]
    stores.ended(1, 1)
    assert stores.overwritten({4}) == [first]  # a rank still reads it
    stores.ended(1, 1)
    stores.ended(2, 2)
    stores.ended(3, 1)
    assert stores.overwritten({4, 5, 6}) == []
    assert len(stores) == 0


def test_ranks_reports_add_up_and_travel() -> None:
    one = Report([7], {1: 1, 2: 1}, {1: Moved(10, 0.2)})
    two = Report([7], {1: 1}, {1: Moved(20, 0.1)})
    both = pickle.loads(pickle.dumps(one)).aggregate(two)
    assert both == Report([7], {1: 2, 2: 1}, {1: Moved(30, 0.2)})
    step = Step(number=3, loads=[order(1, [2])], cancelled=[9])
    assert pickle.loads(pickle.dumps(step)) == step


def lora(folder: Path, number: int = 1, **more: Any) -> Any:
    return SimpleNamespace(lora_name="a", lora_int_id=number, lora_path=str(folder), **more)


def test_an_adapter_is_known_by_its_content(tmp_path: Path) -> None:
    for name, content in (("one", b"w"), ("copy", b"w"), ("other", b"x")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "adapter_model.safetensors").write_bytes(content)
        (folder / "adapter_config.json").write_text("{}")
    adapters = Adapters()
    requests = [lora(tmp_path / name) for name in ("one", "copy", "other")]
    assert [adapters.digest(each) for each in requests] == [None] * 3  # being read
    eventually(lambda: all(adapters.digest(each) for each in requests), "all are read")
    one, copy, other = (adapters.digest(each) for each in requests)
    assert one == copy != other
    # The engine keeps what it has loaded under a number, whatever its folder holds by now.
    (tmp_path / "one/adapter_model.safetensors").write_bytes(b"new")
    assert adapters.digest(requests[0]) == one
    assert adapters.digest(lora(tmp_path / "one", load_inplace=True)) is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"kv_load_failure_policy": "fail"}, 'set it to "recompute"'),
        ({"kv_role": "kv_producer"}, "set it to kv_both"),
        ({"dcp": 2}, "decode_context_parallel_size is 2"),
        ({"sleep": True}, "leave --enable-sleep-mode out"),
    ],
)
def test_an_engine_that_would_suffer_does_not_start(changed: dict[str, Any], said: str) -> None:
    fine = {
        "kv_load_failure_policy": "recompute",
        "kv_role": "kv_both",
        "dcp": 1,
        "sleep": False,
    }
    _check(given(fine))
    with pytest.raises(KeepwarmError, match=said):
        _check(given(fine | changed))


def given(facts: dict[str, Any]) -> Any:
    parallel = SimpleNamespace(decode_context_parallel_size=facts["dcp"])
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(**facts),
        parallel_config=parallel,
        model_config=SimpleNamespace(enable_sleep_mode=facts["sleep"]),
    )


def test_blocks_that_are_cleared_before_stores_are_fenced_are_refused() -> None:
    half = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=32, dtype=torch.float16)
    mixed = UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs={"a": SPEC, "b": half})
    for spec, second, refused in ((mixed, True, True), (mixed, False, False), (SPEC, True, False)):
        group = KVCacheGroupSpec(["a", "b"], spec)
        cache = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[group])
        engine: Any = SimpleNamespace(use_v2_model_runner=second)
        with pytest.raises(UnknownLayoutError, match="first") if refused else nullcontext():
            _check_zeroing(engine, cache)


def half() -> Worker:
    """A rank's half over a fake memory."""
    layout = Layout((torch.zeros(BLOCKS, 16, dtype=torch.uint8),), 16, BLOCKS, "")
    session, _ = fake_session()
    return Worker(session.settings, {}, layout, 0, lambda *_: session)


def test_a_rank_ends_every_load_whatever_fails_of_ours(
    monkeypatch: pytest.MonkeyPatch, engine_log: EngineLog
) -> None:
    worker = half()
    try:
        worker.load(Step(loads=[Order(1, "gone", -1, b"", 0, b"", [3, 4], 0.0)]))
        assert (worker.finished(), worker.failed()) == ({"gone"}, {3, 4})

        def fails() -> None:
            raise RuntimeError("no device")

        monkeypatch.setattr(worker._copier, "mark", fails)
        worker.load(Step(loads=[order(2, [5]), order(3, [6])]))
        worker.store(Step(number=9, stores=[order(4, [7])]))
        assert (worker.finished(), worker.failed()) == ({"r"}, {5, 6})
        assert worker.report() == Report(
            [9], {1: 1, 2: 1, 3: 1, 4: 1}, dict.fromkeys((1, 2, 3), Moved(0, 0.0))
        )
        assert worker.finished() == set()
    finally:
        worker.close()
    engine_log.clear()  # it is said, and counted


def test_a_step_that_vllm_does_not_end_is_ended_with_the_next() -> None:
    worker = half()
    try:
        for number in (1, 2, 3):
            refused = Order(10 * number, "r", -1, b"", 0, b"", [number], 0.0)
            step = Step(number=number, stores=[refused])
            worker.begin(step)
            if number == 2:
                worker.store(step)
        assert worker.report() == Report([1, 2], {10: 1, 20: 1})
    finally:
        worker.close()


def test_many_adapters_are_read_by_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, readers = threading.Event(), set()

    def read(_: Any, folder: Path) -> str:
        readers.add(threading.get_ident())
        assert go.wait(10.0)
        return "sha256:" + folder.name.encode().hex()

    monkeypatch.setattr("keepwarm.connectors.vllm.direct.adapters.content_name", read)
    adapters, asked = Adapters(), []
    for number in range(20):
        folder = tmp_path / f"lora{number}"
        folder.mkdir()
        (folder / "adapter_config.json").write_text("{}")
        asked.append(SimpleNamespace(lora_name="a", lora_int_id=number + 1, lora_path=str(folder)))
    assert [adapters.digest(each) for each in asked] == [None] * 20
    go.set()
    eventually(lambda: all(adapters.digest(each) for each in asked), "all are read")
    assert len(readers) == 1
    assert adapters.digest(asked[7]) == b"lora7"
