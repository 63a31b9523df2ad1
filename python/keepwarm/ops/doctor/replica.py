"""One engine, judged from what it says of itself over HTTP: /version, /v1/models, /metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from keepwarm.engines.asking import EngineClient, Figures
from keepwarm.ops.doctor.checks import Check, fail, ok, warn

INFO = "keepwarm_connector_info"
JOINED = "keepwarm_connector_joined"
REFUSED = "keepwarm_connector_refused"
TOKENS = "keepwarm_connector_prompt_tokens_total"
PLANNER = "keepwarm_planner_"
CACHE = "vllm:cache_config_info"
QUERIES = "vllm:external_prefix_cache_queries_total"
HITS = "vllm:external_prefix_cache_hits_total"

TESTED = "0.32"
# Below so many tokens zero hits say nothing: each prompt may have been the first of its kind.
TOKENS_FEW = 20_000
# A share of all prompt tokens above which one reason is worth a line although there are hits.
REASON_SHARE = 0.25
TOKENS_A_BLOCK_LEAST = 16
# Of the time of prefills, lost by decisions that turned out to be the worse ones.
REGRET_SHARE = 0.05

NOT_WRONG = frozenset({"absent", "partial_block", "last_token", "after_gap", "planner"})

_REMEDIES = {
    "absent": "nothing was stored under this identity: see whether replicas of one model show the "
    "same namespace, whether prompts repeat at all from their first token, and whether stores are "
    "shed (keepwarm stat)",
    "evicted": "blocks leave before they are used again: raise the nodes' capacity, or add flash",
    "expired": "blocks outlive their ttl before they are used again: raise ttl",
    "epoch": "blocks are of an older epoch or of weights before an update: they come back as "
    "prompts are computed again; with frequent resets see weights_fixed in docs/vllm.md",
    "quota": "the tenant's quota is filled: raise it",
    "pending": "several engines compute the same prompt at once: route a session to one replica",
    "corrupt": "bytes change on the way or in a node's memory: run keepwarm doctor node",
    "identity": "the node refuses this engine's namespace, or blocks have another length: see its "
    "log and keepwarm stat",
    "deadline": "answers come too late: run keepwarm doctor node from the engine's machine; on a "
    "slow network raise lookup_deadline_s and load_deadline_s",
    "store_down": "no node answers the engine: start one, or correct address in the connector's "
    "settings; run keepwarm doctor node with that address on the engine's machine",
    "throttled": "the node or the connector sheds load: add nodes, or raise loads_max",
    "planner": "it is there, but computing again is faster here: longer prompts, a faster way to "
    "the node (docs/vllm.md), or planner=always if you know better",
    "host_pool_full": "vLLM's host pool has no room: raise cpu_bytes_to_use, or use the direct "
    "connector",
    "after_gap": "blocks in front of them are missing: look at the other reasons first",
    "partial_block": "prompts are shorter than a block, or end inside one: smaller blocks",
    "last_token": "prompts end where a block ends: nothing to do",
    "load_failed": "loads fail after they were promised: run keepwarm doctor node, and look at the "
    "engine's log",
    "disabled": "restoring is off for these requests or this engine: planner=off, or LoRA in the "
    "tier (use the direct connector)",
}


@dataclass(slots=True)
class Replica:
    """An engine and what it said."""

    client: EngineClient
    name: str
    version: str = ""
    model: dict[str, Any] = field(default_factory=dict)
    figures: Figures = field(default_factory=lambda: Figures({}))

    @property
    def info(self) -> dict[str, str]:
        """The connector's own words; empty without one of ours."""
        # What it was before a move to another namespace is 0.
        found = self.figures.labels(INFO, least=1.0)
        return found[0] if found else {}

    @property
    def cache(self) -> dict[str, str]:
        """vLLM's cache configuration."""
        found = self.figures.labels(CACHE)
        return found[0] if found else {}


def checks(replica: Replica) -> Iterator[Check]:
    """All that one engine's own words allow."""
    yield _release(replica)
    connector = _connector(replica)
    yield connector
    yield _caching(replica)
    if connector.level == "fail":
        return
    yield _policy(replica)
    yield _joined(replica)
    yield _blocks(replica)
    yield _planner(replica)
    yield from _hits(replica)


def _release(replica: Replica) -> Check:
    label = f"release {replica.name}"
    if replica.version.startswith(TESTED):
        return ok(label, f"vLLM {replica.version}")
    todo = f"the connectors are tested with vLLM {TESTED}: run that, or read the engine's log"
    return warn(label, f"vLLM {replica.version}", todo)


def _connector(replica: Replica) -> Check:
    label = f"connector {replica.name}"
    if not replica.figures.has("keepwarm_connector_"):
        todo = (
            "no keepwarm figures on its /metrics: start it with --kv-transfer-config as "
            "docs/vllm.md shows and without --disable-log-stats; they come with the first request, "
            "so with --no-probe ask it once before"
        )
        return fail(label, "none of Keepwarm's", todo)
    info = replica.info
    told = f"{info.get('connector', 'keepwarm')} {info.get('version', '')}".strip()
    return ok(label, told)


def _caching(replica: Replica) -> Check:
    label = f"caching {replica.name}"
    said = replica.cache.get("enable_prefix_caching")
    if said == "False":
        todo = "start the engine without --no-enable-prefix-caching: nothing is restored without it"
        return fail(label, "prefix caching is off", todo)
    return ok(label, "prefix caching is on" if said == "True" else "the engine does not say")


def _policy(replica: Replica) -> Check:
    label = f"failures {replica.name}"
    said = replica.info.get("load_failure_policy")
    if said == "fail":
        todo = (
            'set "kv_load_failure_policy": "recompute": with fail, which is the default, a block '
            "that cannot be loaded ends its request with an error"
        )
        return fail(label, "a failed load fails its request", todo)
    told = "a failed load is recomputed" if said == "recompute" else "the engine does not say"
    return ok(label, told)


def _joined(replica: Replica) -> Check:
    label = f"joined {replica.name}"
    # A server may have several engines: one that is left out is a fault.
    if replica.figures.total(JOINED) < len(replica.figures.labels(JOINED)):
        if replica.figures.total(REFUSED):
            return fail(label, "the node refuses it", remedy("identity"))
        return fail(label, "no node answers it", remedy("store_down"))
    return ok(label, "on the memory")


def _blocks(replica: Replica) -> Check:
    label = f"block {replica.name}"
    size = replica.cache.get("block_size", "")
    if not size.isdigit():
        return ok(label, "the engine does not say")
    told = f"{size} tokens"
    if int(size) < TOKENS_A_BLOCK_LEAST:
        todo = f"small blocks cost a key each: give --block-size {TOKENS_A_BLOCK_LEAST} or more"
        return warn(label, told, todo)
    return ok(label, told)


def _planner(replica: Replica) -> Check:
    """Where it stands: too few samples, or what it has learnt."""
    label, figures = f"planner {replica.name}", replica.figures
    decisions = +figures.by(f"{PLANNER}decisions_total", "why")
    rate = figures.by(f"{PLANNER}restore_bytes_per_second", "tier")
    token_s = figures.total(f"{PLANNER}prefill_token_seconds")
    regret_s = figures.total(f"{PLANNER}regret_seconds_total")
    prefill_s = figures.total(f"{PLANNER}prefill_seconds_total")
    shown = [f"{why} {count:,}" for why, count in decisions.most_common(3)]
    shown += [f"{tier} {value / 2**30:.2f} GiB/s" for tier, value in rate.items() if value]
    if token_s:
        shown.append(f"{1e3 * token_s:.3f} ms a token")
    if not shown:
        return ok(label, "nothing to decide yet")
    if prefill_s and regret_s > REGRET_SHARE * (prefill_s + regret_s):
        shown.append(f"{regret_s:.1f} s lost")
        return warn(label, ", ".join(shown), remedy("planner"))
    return ok(label, ", ".join(shown))


def _hits(replica: Replica) -> Iterator[Check]:
    figures, label = replica.figures, f"hits {replica.name}"
    sources = figures.by(TOKENS, "source")
    reasons = +figures.by(TOKENS, "reason", source="recomputed")
    asked = sources.total()
    brought = asked - sources["device"] - sources["recomputed"]
    told = f"{brought:,} of {asked:,} prompt tokens restored, {sources['device']:,} on the device"
    worst = [each for each in reasons.most_common() if each[0] not in NOT_WRONG]
    if asked >= TOKENS_FEW and not brought and reasons:
        why = leading(reasons)
        yield warn(label, f"{told}; most of the others: {why}", remedy(why))
    elif worst and worst[0][1] > REASON_SHARE * asked and asked >= TOKENS_FEW:
        why, tokens = worst[0]
        figure = f"{told}; {tokens:,} recomputed: {why}"
        yield warn(label, figure, remedy(why))
    else:
        yield ok(label, told)


def remedy(why: str) -> str:
    """What to do about a reason of the closed list."""
    return _REMEDIES.get(why, f"what {why} means is in docs/vllm.md")


def leading(reasons: Counter[str]) -> str:
    """The reason to begin with: one that tells of a fault, where there is one."""
    wrong = Counter({why: n for why, n in reasons.items() if why not in NOT_WRONG})
    behind = Counter({why: n for why, n in reasons.items() if why != "after_gap"})
    for found in (wrong, behind, reasons):
        if found:
            return found.most_common(1)[0][0]
    return "absent"
