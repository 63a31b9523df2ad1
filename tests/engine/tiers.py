"""What the tests of the tier share: how one is configured, and whether its books are right."""

from __future__ import annotations

from typing import Any

from keepwarm.adapter.accounting import reconcile
from keepwarm.connectors.vllm.guard import faults
from keepwarm.connectors.vllm.tier import KeepwarmTier
from keepwarm.testing.waiting import eventually

from engine.harness import BLOCK_TOKENS, Answer, Engine

BLOCK_BYTES = BLOCK_TOKENS * 8192  # of the model "tiny"
OURS = "keepwarm.connectors.vllm"
# A busy machine must not turn hits into misses; where nodes hang, tests have less patience.
PATIENT: dict[str, Any] = {
    "lookup_deadline_s": 10.0,
    "load_deadline_s": 20.0,
    "store_deadline_s": 20.0,
}
BRIEF: dict[str, Any] = {"lookup_deadline_s": 1.0, "load_deadline_s": 2.0, "store_deadline_s": 2.0}


def connector(
    address: str, chunks: int = 384, plain: bool = False, **settings: Any
) -> dict[str, Any]:
    """vLLM's configuration of a tier; `plain`: below vLLM's own connector.

    Caches are emptied by resets here, which change no weights.
    """
    named = {"kv_connector": "OffloadingConnector"}
    if not plain:
        named = {
            "kv_connector": "KeepwarmOffloadingConnector",
            "kv_connector_module_path": OURS,
        }
    tier = {
        "type": "KeepwarmTier",
        "module_path": OURS,
        "address": address,
        "weights_fixed": True,
        "planner": "always",
    }
    return named | {
        "kv_connector_extra_config": {
            "spec_name": "HostTieringSpec",
            "spec_module_path": OURS,
            "cpu_bytes_to_use": chunks * BLOCK_BYTES,
            "secondary_tiers": [tier | PATIENT | settings],
        }
    }


def tier_of(engine: Engine) -> KeepwarmTier:
    """The engine's, once a node has accepted it."""
    tier: KeepwarmTier = engine.scheduler.connector.connector_scheduler.manager.secondary_tiers[0]
    return tier


def joined(tier: KeepwarmTier) -> KeepwarmTier:
    """Waits for the node."""
    eventually(lambda: tier.session.problem is None, "the node accepts the engine's namespace")
    return tier


def reference(engine: Engine, tokens: list[int], **options: Any) -> Answer:
    """What the engine says from its own prefix cache, the second time."""
    engine.ask(tokens, **options)
    answer = engine.ask(tokens, **options)
    engine.settle()
    return answer


def assert_books_agree(engine: Engine, tier: KeepwarmTier) -> None:
    """Every prompt token once, as vLLM counts."""
    engine.settle()
    totals, metrics = tier.accounting.totals(), engine.metrics()
    assert totals.sums(), totals
    name = "vllm:prompt_tokens_by_source"
    theirs = {
        source: int(metrics[f"{name}{{source={source}}}"])
        for source in ("local_cache_hit", "external_kv_transfer", "local_compute")
    }
    theirs["prompt_tokens"] = int(metrics["vllm:prompt_tokens"])
    assert reconcile(totals, theirs, host_is_external=True) == {}, (totals, theirs)


def assert_at_rest(engine: Engine, tier: KeepwarmTier) -> None:
    """Nothing is left of requests that have ended, and nothing went wrong unseen."""
    engine.settle()
    assert not faults, faults
    assert not tier.requests
    assert not len(tier.jobs)
    primary = engine.scheduler.connector.connector_scheduler.manager.primary_tier
    used = primary._num_allocated_chunks - len(primary._free_list)
    assert used == primary._num_evictable_cache_chunks, "slots of the host pool stay pinned"
