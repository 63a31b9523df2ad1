"""Every prompt token exactly once, counted at a request's first output, as vLLM counts.

What vLLM 0.32 counts (`v1/core/sched/scheduler.py`, `v1/metrics/stats.py`): a request's split
into local hits, external hits and the rest is taken when it is admitted, is taken again if it is
admitted again from its first token on (a load that failed from there), is *not* taken again after a
preemption, and reaches the counters with the first output. A request that ends before is never
counted. A load that fails later leaves `external_kv_transfer` as it was. So

    external_kv_transfer = host + restored + load_failed_after_schedule

where vLLM's host pool lies between (its hits are external too), and without `host` for a connector
that has none. `begin` again starts a request's ledger anew; `preempted` closes it to what follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from keepwarm.adapter.reasons import Recomputed

OPEN_MAX = 65_536
UNKNOWN_TIER = "unknown"

Name = TypeVar("Name", bound=str)


@dataclass(slots=True)
class Totals:
    """Sums over counted requests: prompt = device + host + restored + recomputed, always."""

    prompt: int = 0
    device: int = 0
    host: int = 0
    restored: dict[str, int] = field(default_factory=dict)
    recomputed: dict[Recomputed, int] = field(default_factory=dict)
    load_failed_after_schedule: int = 0
    requests: int = 0
    aborted: int = 0
    """requests that ended before their first output; none of their tokens is above"""

    def sums(self) -> bool:
        """Whether the parts are the whole."""
        parts = self.device + self.host
        return self.prompt == parts + sum(self.restored.values()) + sum(self.recomputed.values())


@dataclass(slots=True)
class _Ledger:
    prompt: int
    device: int = 0
    host: int = 0
    restored: dict[str, int] = field(default_factory=dict)
    missed: dict[Recomputed, int] = field(default_factory=dict)
    load_failed: int = 0
    frozen: bool = False


class Accounting:
    """Belongs to one thread, the scheduler's; `totals` may be read from any."""

    def __init__(self, block_tokens: int = 1) -> None:
        """`block_tokens` tells a prompt's rest that fills no block from one behind a gap."""
        self._block_tokens = max(1, block_tokens)
        self._open: dict[str, _Ledger] = {}
        self._totals = Totals()
        self._seen = 0

    def begin(self, request: str, prompt_tokens: int) -> None:
        """A request, or its next admission from its first token on."""
        known = self._open.get(request)
        if known is not None and known.frozen:
            return
        if known is None and len(self._open) >= OPEN_MAX:
            self._open.pop(next(iter(self._open)))  # its engine has forgotten to end it
        self._open[request] = _Ledger(max(0, prompt_tokens))

    def device(self, request: str, tokens: int) -> None:
        """Found in the engine's own cache."""
        ledger = self._writable(request)
        if ledger is not None:
            ledger.device += max(0, tokens)

    def host(self, request: str, tokens: int) -> None:
        """Found in the engine's host pool."""
        ledger = self._writable(request)
        if ledger is not None:
            ledger.host += max(0, tokens)

    def restored(self, request: str, tier: str | None, tokens: int) -> None:
        """Given back by Keepwarm, from this tier."""
        ledger = self._writable(request)
        if ledger is not None:
            _add(ledger.restored, tier or UNKNOWN_TIER, tokens)

    def missed(self, request: str, reason: Recomputed, tokens: int) -> None:
        """Computed again, for this reason."""
        ledger = self._writable(request)
        if ledger is not None:
            _add(ledger.missed, reason, tokens)

    def load_failed(self, request: str, tokens: int) -> None:
        """Noted as restored before, and computed again now; a preempted request's too."""
        ledger = self._open.get(request)
        if ledger is None:
            return
        for tier in reversed(list(ledger.restored)):
            part = min(max(0, tokens), ledger.restored[tier])
            ledger.restored[tier] -= part
            _add(ledger.missed, Recomputed.LOAD_FAILED, part)
            ledger.load_failed += part
            tokens -= part

    def blocks(
        self,
        request: str,
        hits: Sequence[bool],
        chosen: int,
        miss: Recomputed | None,
        block_tokens: int,
        declined: Recomputed = Recomputed.PLANNER,
    ) -> None:
        """Why an answer's blocks from `chosen` on are computed again, one reason each.

        Hits of the prefix that were not chosen are `declined`, the first that is missing is `miss`,
        and all behind it are behind a gap.
        """
        prefix = next((at for at, hit in enumerate(hits) if not hit), len(hits))
        self.missed(request, declined, (prefix - min(chosen, prefix)) * block_tokens)
        if prefix < len(hits):
            self.missed(request, miss or Recomputed.ABSENT, block_tokens)
            self.missed(request, Recomputed.AFTER_GAP, (len(hits) - prefix - 1) * block_tokens)

    def preempted(self, request: str) -> None:
        """Preempted before its first output: counted as it was first admitted."""
        ledger = self._open.get(request)
        if ledger is not None:
            ledger.frozen = True

    def finish(self, request: str, *, aborted: bool = False) -> None:
        """The first output, or with `aborted` an end without one. Twice is harmless."""
        ledger = self._open.pop(request, None)
        if ledger is None:
            return
        if aborted:
            self._totals.aborted += 1
            return
        self._close(ledger)
        total = self._totals
        total.requests += 1
        total.prompt += ledger.prompt
        total.device += ledger.device
        total.host += ledger.host
        total.load_failed_after_schedule += ledger.load_failed
        for tier, tokens in ledger.restored.items():
            _add(total.restored, tier, tokens)
        for reason, tokens in ledger.missed.items():
            _add(total.recomputed, reason, tokens)

    def is_open(self, request: str) -> bool:
        """Whether the request has begun and not been counted."""
        return request in self._open

    def has_news(self) -> bool:
        """Whether a request was counted since this was asked last: an idle engine ships nothing, so
        that what waits for its next step waits for its next request."""
        seen, self._seen = self._seen, self._totals.requests
        return seen != self._seen

    def totals(self) -> Totals:
        """A copy."""
        now = self._totals
        return Totals(
            prompt=now.prompt,
            device=now.device,
            host=now.host,
            restored=dict(now.restored),
            recomputed=dict(now.recomputed),
            load_failed_after_schedule=now.load_failed_after_schedule,
            requests=now.requests,
            aborted=now.aborted,
        )

    def _writable(self, request: str) -> _Ledger | None:
        ledger = self._open.get(request)
        return None if ledger is None or ledger.frozen else ledger

    def _close(self, ledger: _Ledger) -> None:
        """Makes the parts the whole: cuts what was noted too much, names what was not noted."""
        left = ledger.prompt
        ledger.device = min(ledger.device, left)
        left -= ledger.device
        ledger.host = min(ledger.host, left)
        left -= ledger.host
        # Engines count a prompt that is all hits as all hits, and compute its last token again.
        left = _fit(ledger.restored, left)
        left = _fit(ledger.missed, left)
        if left:
            _add(ledger.missed, self._rest(ledger, left), left)

    def _rest(self, ledger: _Ledger, left: int) -> Recomputed:
        if ledger.missed.get(Recomputed.AFTER_GAP):
            tail = ledger.prompt % self._block_tokens
            return Recomputed.PARTIAL_BLOCK if left == tail else Recomputed.AFTER_GAP
        found = ledger.device + ledger.host + sum(ledger.restored.values())
        if left == 1 and found:
            return Recomputed.LAST_TOKEN
        if left < self._block_tokens:
            return Recomputed.PARTIAL_BLOCK
        return Recomputed.AFTER_GAP if ledger.missed else Recomputed.DISABLED


def _add(into: dict[Name, int], name: Name, tokens: int) -> None:
    if tokens > 0:
        into[name] = into.get(name, 0) + tokens


def _fit(parts: dict[Name, int], left: int) -> int:
    """Cuts the parts, in their order, to what is left; returns what then is."""
    for name, tokens in list(parts.items()):
        parts[name] = min(tokens, left)
        left -= parts[name]
    return left


def reconcile(
    totals: Totals, engine: Mapping[str, int], *, host_is_external: bool
) -> dict[str, tuple[int, int]]:
    """Each of the engine's counters that does not agree with ours, as (ours, the engine's).

    `engine` has vLLM's `prompt_tokens_by_source` by source: local_cache_hit, external_kv_transfer,
    local_compute; and, if known, `prompt_tokens`. Empty: they agree.
    """
    restored, failed = sum(totals.restored.values()), totals.load_failed_after_schedule
    host = totals.host if host_is_external else 0
    ours = {
        "local_cache_hit": totals.device + totals.host - host,
        "external_kv_transfer": host + restored + failed,
        "local_compute": sum(totals.recomputed.values()) - failed,
        "prompt_tokens": totals.prompt,
    }
    return {
        name: (ours[name], count)
        for name, count in engine.items()
        if name in ours and ours[name] != count
    }
