"""The questions that a large host pool answers, one function each; figures go to stdout."""

from __future__ import annotations

import time
from typing import Any

import torch
from engine import BLOCK_TOKENS, Answer, Engine, prompt
from tier import Policy


def show(case: str, **facts: Any) -> None:
    def text(value: Any) -> str:
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    print(f"{case:34s}", *(f"{k}={text(v)}" for k, v in facts.items()), flush=True)


def same(answer: Answer, expected: Answer) -> bool:
    return answer.tokens == expected.tokens


def last_held(e: Engine) -> dict[str, Any]:
    held = list(e.tier.held.values())[-1]
    return {"steps_held": held.steps, "ms_held": held.ms, "tier_lookups": held.lookups}


def round_trips(e: Engine) -> None:
    for tokens in (128, 1056, 8224):
        trips, jobs = e.tier.store.lookups, e.tier.store.stores
        cold = e.ask(prompt(tokens, tokens))
        trips = e.tier.store.lookups - trips
        e.forget()
        jobs = e.tier.store.stores - jobs
        show(f"1 absent {tokens}", round_trips=trips, **last_held(e), store_jobs=jobs)
        trips, jobs, e.scan_s = e.tier.store.lookups, e.tier.store.loads, []
        warm = e.ask(prompt(tokens, tokens))
        show(
            f"1 stored {tokens}",
            same=same(warm, cold),
            cached=warm.cached_tokens,
            round_trips=e.tier.store.lookups - trips,
            load_jobs=e.tier.store.loads - jobs,
            cold_s=cold.seconds,
            warm_s=warm.seconds,
            scan_ms=tuple(round(s * 1e3, 2) for s in e.scan_s[:4]),
            scans=len(e.scan_s),
            **last_held(e),
        )
        e.forget()


def one_prompt_twice(e: Engine) -> None:
    """Two requests for one stored prompt at once, and what the engine's counters say."""
    tokens = prompt(13, 1056)
    expected = e.ask(tokens)
    for fail in (False, True):
        e.forget()
        e.tier.switches.fail_loads = fail
        trips, jobs, before = e.tier.store.lookups, e.tier.store.loads, _sources(e)
        answers = list(e.finish(e.add(tokens), e.add(tokens)).values())
        show(
            f"1 one prompt twice, fail_loads={fail}",
            same=all(same(a, expected) for a in answers),
            round_trips=e.tier.store.lookups - trips,
            load_jobs=e.tier.store.loads - jobs,
            cached=[a.cached_tokens for a in answers],
            prompt_tokens={k: int(v - before[k]) for k, v in _sources(e).items()},
        )
        e.tier.switches.heal()
    e.forget()


def _sources(e: Engine) -> dict[str, float]:
    metrics = [m for m in e.llm.get_metrics() if m.name == "vllm:prompt_tokens_by_source"]
    return {m.labels["source"]: m.value for m in metrics}


def behind_a_device_hit(e: Engine) -> None:
    """Which keys are known when the device cache holds the head of the prompt?"""
    tokens = prompt(12, 1056)
    e.ask(tokens[:512])
    e.settle()
    e.forget(host=False)
    e.ask(tokens[:256])
    e.settle()
    keys = _keys(e, tokens)
    context = list(e.tier.contexts.values())[-1]
    first = context.get_offload_key_position(keys[0])
    show(
        "1 device has 256, host 512 of 1056",
        first_asked=first,
        keys_asked=len(keys),
        keys_in_context=len(context._offload_key_positions),
    )
    e.forget()


def waiting_costs(e: Engine) -> None:
    """A reply that takes 50 ms: what each step costs while the request waits."""
    e.tier.switches.lookup_delay_s = 0.05
    for short in (False, True):
        e.tier.policy.short_scan, e.scan_s = short, []
        e.ask(prompt(1, 8224))
        waiting = sorted(e.scan_s[1:-1])
        show(
            f"1 waiting short_scan={short}",
            scans=len(e.scan_s),
            median_scan_us=waiting[len(waiting) // 2] * 1e6,
            **last_held(e),
        )
        e.forget()
        e.tier.store.blocks.clear()
    e.tier.switches.heal()


def few_hits_a_step(e: Engine) -> None:
    """The scan that answers HIT is the dearest: what does spreading it over steps cost?"""
    tokens = prompt(17, 8224)
    expected = e.ask(tokens)
    for most in (10**9, 64):
        e.forget()
        e.tier.policy.hits_per_step, e.scan_s, jobs = most, [], e.tier.store.loads
        answer = e.ask(tokens)
        show(
            f"1 stored 8224, {most} HITs a step",
            same=same(answer, expected),
            cached=answer.cached_tokens,
            load_jobs=e.tier.store.loads - jobs,
            longest_scan_ms=max(e.scan_s) * 1e3,
            **last_held(e),
        )
    e.forget()


def beside_a_running_request(e: Engine) -> None:
    """Steps are forward passes of the others: how long does a prompt wait then?"""
    shared = prompt(2, 1056)
    e.ask(shared)
    e.forget()
    absent = [("absent", prompt(70 + n, 1056)) for n in range(3)]
    for case, tokens in absent + [("stored", shared)] * 3:
        running = e.add(prompt(4, 512), n=400)
        for _ in range(20):
            e.turn()
        start, first = time.monotonic(), e.tier.step
        for _ in range(50):
            e.turn()
        step_ms = (time.monotonic() - start) * 1e3 / (e.tier.step - first)
        answer = e.ask(tokens)
        show(f"1 busy {case}", step_ms=step_ms, cached=answer.cached_tokens, **last_held(e))
        e.finish(running)
        e.forget()


def stalls(e: Engine) -> None:
    shared = prompt(5, 1056)
    expected = e.ask(shared)
    e.forget()
    e.tier.switches.lookup_gate.clear()
    answer = e.ask(shared)
    show(
        "2 lookup stalled",
        same=same(answer, expected),
        cached=answer.cached_tokens,
        deadline_ms=e.tier.policy.lookup_deadline_s * 1e3,
        **last_held(e),
    )
    answer = e.ask(prompt(14, 1056))
    show("2 next prompt, breaker open", cached=answer.cached_tokens, **last_held(e))
    e.tier.switches.heal()
    e.forget()
    answer = e.ask(shared)
    show("2 healed", same=same(answer, expected), cached=answer.cached_tokens, **last_held(e))
    e.forget()
    e.tier.switches.load_gate.clear()
    answer = e.ask(shared)
    show(
        "2 load stalled",
        same=same(answer, expected),
        cached=answer.cached_tokens,
        deadline_ms=e.tier.policy.job_deadline_s * 1e3,
        **last_held(e),
    )
    e.tier.switches.heal()
    e.forget()
    answer = e.ask(shared)
    show("2 healed", same=same(answer, expected), cached=answer.cached_tokens, **last_held(e))
    e.forget()
    e.tier.switches.store_gate.clear()
    e.tier.policy.job_deadline_s = 60.0
    answer = e.ask(prompt(6, 1056))
    first, start, cpu = e.tier.step, time.monotonic(), time.process_time()
    idle = not e.settle(limit_s=1.0)
    wall = time.monotonic() - start
    show(
        "2 store stalled, idle engine",
        still_stepping=idle,
        pinned_chunks=e.pinned(),
        steps_per_s=(e.tier.step - first) / wall,
        cpu_share=(time.process_time() - cpu) / wall,
    )
    e.tier.switches.heal()
    e.settle()
    show("2 after it", pinned_chunks=e.pinned())
    e.forget()


def failing_loads(e: Engine) -> None:
    shared = prompt(7, 1056)
    expected = e.ask(shared)
    for forget in (False, True):
        for switch in ("fail_loads", "corrupt_loads"):
            e.forget()
            e.tier.policy.forget_failed = forget
            setattr(e.tier.switches, switch, True)
            jobs = e.tier.store.loads
            answer = e.ask(shared, limit_s=20.0 if forget else 2.0)
            show(
                f"5 {switch} forget_failed={forget}",
                finished=answer.finished,
                same=same(answer, expected),
                load_jobs=e.tier.store.loads - jobs,
                cached=answer.cached_tokens,
            )
            e.tier.switches.heal()
    e.forget()
    gone = e.tier._key(_keys(e, shared)[20])
    block = e.tier.store.blocks.pop(gone)
    answer = e.ask(shared)
    show("5 block 20 absent", same=same(answer, expected), cached=answer.cached_tokens)
    e.forget()
    e.tier.store.blocks[gone] = block
    e.tier.switches.load_delay_s, jobs = 0.1, e.tier.store.loads
    name = e.add(shared)
    e.until(lambda: bool(e.tier._jobs))
    del e.tier.store.blocks[gone]
    answer = e.finish(name)[name]
    show(
        "5 block 20 evicted after the reply",
        same=same(answer, expected),
        cached=answer.cached_tokens,
        load_jobs=e.tier.store.loads - jobs,
    )
    e.tier.switches.heal()
    e.forget()


def _keys(e: Engine, tokens: list[int], **options: Any) -> list[bytes]:
    """The tier keys that vLLM asks for, in order."""
    e.tier.switches.lookup_gate.clear()
    name = e.add(tokens, **options)
    for _ in range(3):
        e.turn()
    keys = [list(r.keys) for n, r in e.tier.requests.items() if n.startswith(name)]
    e.core.abort_request([name])
    e.tier.switches.heal()
    e.settle()
    return keys[-1]


def request_context(e: Engine) -> None:
    tokens = prompt(8, 96)
    plain, salted = _keys(e, tokens), _keys(e, tokens, salt="tenant-a")
    again = _keys(e, tokens, salt="tenant-a", params={"kv_transfer_params": {"keepwarm": "x"}})
    context = list(e.tier.contexts.values())[-1]
    show(
        "4 cache_salt in the keys",
        plain_equals_salted=bool(set(plain) & set(salted)),
        salted_equals_salted=salted == again,
        key_bytes=len(plain[0]),
    )
    facts = {k: v for k, v in vars(context).items() if not k.startswith("_")}
    show("4 ReqContext", **facts, positions=list(context._offload_key_positions.values()))


def lora_in_hash() -> None:
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher
    from vllm.v1.request import Request

    hasher = get_request_block_hasher(BLOCK_TOKENS, sha256)

    def first_hash(name: str | None, path: str = "/a") -> bytes:
        lora = name and LoRARequest(name, 1, path)
        return Request(
            "x", prompt(9, 64), SamplingParams(), None, lora_request=lora, block_hasher=hasher
        ).block_hashes[0]

    show(
        "4 LoRA in the block hash",
        by_name=first_hash("one") != first_hash("two"),
        by_path=first_hash("one", "/a") != first_hash("one", "/b"),
        by_content="no: only name and path are hashed",
    )


def resets(e: Engine) -> None:
    shared = prompt(10, 1056)
    expected = e.ask(shared)
    e.settle()
    drains, epoch = e.tier.drains, e.tier.epoch
    e.llm.reset_prefix_cache()
    show("3 reset_prefix_cache()", drain_jobs=e.tier.drains - drains)
    e.llm.reset_prefix_cache(reset_connector=True)
    show(
        "3 ... reset_connector=True",
        drain_jobs=e.tier.drains - drains,
        epochs=e.tier.epoch - epoch,
        blocks_in_store=len(e.tier.store.blocks) > 0,
    )
    answer = e.ask(shared)
    show("3 after it, new epoch", same=same(answer, expected), cached=answer.cached_tokens)
    e.forget()

    e.tier.switches.lookup_gate.clear()
    trips, name = e.tier.store.lookups, e.add(shared)
    for _ in range(5):
        e.turn()
    e.llm.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    e.tier.switches.heal()
    answer = e.finish(name)[name]
    show(
        "3 reset while it waits for us",
        same=same(answer, expected),
        round_trips=e.tier.store.lookups - trips,
        cached=answer.cached_tokens,
    )
    e.forget()

    trips, name = e.tier.store.lookups, e.add(shared, n=64)
    contexts = len(e.tier.contexts)
    e.until(lambda: any(r.num_output_tokens for r in e.scheduler.running))
    e.llm.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    answer = e.finish(name)[name]
    show(
        "3 reset while it decodes",
        same=answer.tokens[:8] == expected.tokens,
        round_trips=e.tier.store.lookups - trips,
        on_new_request_again=len(e.tier.contexts) - contexts > 0,
    )
    e.forget()
    hung_reset(e, shared, expected)


def hung_reset(e: Engine, shared: list[int], expected: Any) -> None:
    e.ask(shared)  # stored in this epoch
    e.forget()
    e.tier.switches.load_gate.clear()
    name = e.add(shared)
    e.until(lambda: bool(e.tier._jobs))
    job = next(iter(e.tier._jobs))
    e.llm.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    drain_ms = e.tier.drain_s * 1e3
    e.tier.switches.heal()
    answer = e.finish(name)[name]
    show(
        "3 reset with a hung load",
        same=same(answer, expected),
        drain_ms=drain_ms,
        reports=e.tier.reports[job],
        cached=answer.cached_tokens,
    )
    e.forget()


def new_weights(e: Engine) -> None:
    tokens = prompt(11, 1056)
    before = e.ask(tokens)
    e.settle()
    _change_weights(e)
    e.forget()
    e.tier.policy.use_tier = False
    fresh = e.ask(tokens)
    e.tier.policy.use_tier = True
    for new_epoch in (False, True):
        e.forget()
        e.tier.policy.new_epoch_on_drain = new_epoch
        e.llm.reset_prefix_cache(reset_connector=True)
        answer = e.ask(tokens)
        show(
            f"3 new weights, new_epoch={new_epoch}",
            changed=not same(before, fresh),
            same=same(answer, fresh),
            cached=answer.cached_tokens,
        )
    e.forget()


def _change_weights(e: Engine) -> None:
    model = e.core.model_executor.driver_worker.worker.model_runner.get_model()
    for name, weights in model.named_parameters():
        if "layernorm" in name:  # the linear layers were repacked at load
            weights.data.mul_(torch.linspace(-2, 2, weights.numel()))


def a_request_across_new_weights(e: Engine) -> None:
    """Its first tokens come from the old weights; all its blocks come again after a reset."""
    for shed in (False, True):
        tokens = prompt(15 + shed, 8224)
        e.tier.policy.shed_spanning = shed
        name = e.add(tokens)
        e.until(lambda: bool(e.scheduler.running))
        _change_weights(e)
        reset = e.llm.reset_prefix_cache(reset_connector=True)
        e.finish(name)
        e.forget()
        e.tier.policy.use_tier = False
        fresh = e.ask(tokens)
        e.forget()
        e.tier.policy.use_tier = True
        answer = e.ask(tokens)
        show(
            f"3 request across it, shed={shed}",
            reset_said=reset,
            same=same(answer, fresh),
            cached=answer.cached_tokens,
        )
        e.forget()


def reports_once(e: Engine) -> None:
    counts = [len(r) for r in e.tier.reports.values()]
    show(
        "jobs",
        reported=len(counts),
        most_reports_of_one=max(counts),
        fence_us_max=max(e.tier.fences) * 1e6,
    )


def main() -> None:
    e = Engine(host_chunks=384)
    rows(e)
    questions = (
        round_trips,
        behind_a_device_hit,
        one_prompt_twice,
        waiting_costs,
        few_hits_a_step,
        beside_a_running_request,
        stalls,
        failing_loads,
        request_context,
        resets,
        new_weights,
        a_request_across_new_weights,
        reports_once,
    )
    for question in questions:
        e.tier.policy.__dict__.update(vars(Policy()))
        question(e)
    lora_in_hash()


def rows(e: Engine) -> None:
    c = e.tier.config
    show(
        "6 chunk rows",
        chunks=e.tier.chunks,
        row_bytes=e.tier.row_bytes,
        worker_bytes=c.worker_kv_bytes_per_block,
        world_size=c.parallel.world_size,
        blocks_per_chunk=c.cache.blocks_per_chunk,
        tokens_per_hash=c.cache.tokens_per_hash,
        groups=[(g.group_id, g.tokens_per_block, len(g.layer_names)) for g in c.groups],
        layout=c.kv_cache_layout,
        agnostic=c.parallel.is_parallelism_agnostic,
    )
