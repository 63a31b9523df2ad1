"""Where prompt tokens came from, as an engine's /metrics tell it: each token once.

    prompt = device + host + restored (by tier) + recomputed (by reason)

The connector's own figures say it by tier and reason. Without them (another connector, none at all)
vLLM's counters say it more coarsely: whatever a connector gave counts as restored.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from keepwarm.engines.asking import Figures

OURS = "keepwarm_connector_prompt_tokens_total"
ENGINES = "vllm:prompt_tokens_by_source_total"
RESTORED = "restored_"


@dataclass(slots=True)
class Accounts:
    """Tokens by where they came from."""

    device: int = 0
    host: int = 0
    restored: Counter[str] = field(default_factory=Counter)
    recomputed: Counter[str] = field(default_factory=Counter)

    @classmethod
    def read(cls, figures: Figures, ours: bool = True) -> Accounts:
        """The totals of one engine, from our figures (nothing yet: all 0) or from vLLM's."""
        return cls._connectors(figures) if ours else cls._engines(figures)

    @classmethod
    def _connectors(cls, figures: Figures) -> Accounts:
        made = cls()
        for source, tokens in figures.by(OURS, "source").items():
            if source == "device":
                made.device = tokens
            elif source == "host":
                made.host = tokens
            elif source.startswith(RESTORED):
                made.restored[source.removeprefix(RESTORED)] += tokens
        made.recomputed = +figures.by(OURS, "reason", source="recomputed")
        return made

    @classmethod
    def _engines(cls, figures: Figures) -> Accounts:
        by = figures.by(ENGINES, "source")
        return cls(
            device=by["local_cache_hit"],
            restored=+Counter({"unknown": by["external_kv_transfer"]}),
            recomputed=+Counter({"unknown": by["local_compute"]}),
        )

    @property
    def prompt(self) -> int:
        """All of them."""
        return self.device + self.host + self.restored.total() + self.recomputed.total()

    def since(self, before: Accounts) -> Accounts:
        """What came in between; counters only grow."""
        return Accounts(
            self.device - before.device,
            self.host - before.host,
            self.restored - before.restored,
            self.recomputed - before.recomputed,
        )

    def add(self, other: Accounts) -> None:
        """Adds another's tokens to these."""
        self.device += other.device
        self.host += other.host
        self.restored.update(other.restored)
        self.recomputed.update(other.recomputed)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "prompt": self.prompt,
            "device": self.device,
            "host": self.host,
            "restored": self.restored.total(),
            "recomputed": self.recomputed.total(),
            "by_tier": dict(self.restored),
            "by_reason": dict(self.recomputed.most_common()),
        }
