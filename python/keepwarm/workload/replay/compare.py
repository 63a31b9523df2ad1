"""Two targets, the same requests: what the second's answers took over the first's, pair by pair.

Pairs of one session are alike (a session that hits keeps hitting), so the bootstrap draws whole
sessions where they are known; single requests otherwise. Intervals are percentiles of the redrawn
figures (Efron 1979), at 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keepwarm.workload.replay.tally import Kept, Tally

REDRAWS = 1000
INTERVAL = (0.025, 0.975)
SHARES = (0.1, 0.5, 0.9)
PAIRS_MIN = 8
_LEAST_S = 1e-6


@dataclass(frozen=True, slots=True)
class Ratios:
    """Ratios of one duration, pair by pair."""

    logs: NDArray[np.float64]
    clusters: NDArray[np.intp]  # by pair: the number of its session, from 0 without gaps
    longer: int  # pairs in which the second took longer

    @classmethod
    def of(cls, pairs: Sequence[tuple[int, float, float]]) -> Ratios:
        """From (session, first, second); session 0 is one of its own each time."""
        numbers: dict[int, int] = {}
        clusters = []
        for place, (session, _, _) in enumerate(pairs):
            # Negative: no session has that number.
            clusters.append(numbers.setdefault(session or -1 - place, len(numbers)))
        logs = [math.log(max(b, _LEAST_S) / max(a, _LEAST_S)) for _, a, b in pairs]
        longer = sum(b > a for _, a, b in pairs)
        return cls(np.array(logs), np.array(clusters, dtype=np.intp), longer)

    def plain(self, seed: int) -> dict[str, Any]:
        """For JSON: the mean (geometric) and the median ratio with intervals, and the spread."""
        count = len(self.logs)
        if not count:
            return {"pairs": 0}
        sessions = int(self.clusters.max()) + 1
        shown: dict[str, Any] = {
            "pairs": count,
            "drawn_by": "session" if sessions < count else "request",
            "draws_of": sessions,
            "mean": math.exp(float(self.logs.mean())),
            **{
                name: math.exp(float(np.quantile(self.logs, share)))
                for name, share in zip(("p10", "median", "p90"), SHARES, strict=True)
            },
            "second_longer": self.longer / count,
            "mean_interval": None,
            "median_interval": None,
        }
        if sessions >= PAIRS_MIN:
            means, medians = self._redrawn(seed, sessions)
            shown["mean_interval"] = [math.exp(each) for each in np.quantile(means, INTERVAL)]
            shown["median_interval"] = [math.exp(each) for each in np.quantile(medians, INTERVAL)]
        return shown

    def _redrawn(self, seed: int, sessions: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Means and medians of the logarithms, each from sessions drawn with replacement."""
        random = np.random.default_rng(seed)
        order = np.argsort(self.logs, kind="stable")
        sorted_logs, sorted_clusters = self.logs[order], self.clusters[order]
        sums = np.bincount(self.clusters, weights=self.logs, minlength=sessions)
        sizes = np.bincount(self.clusters, minlength=sessions)
        means, medians = np.empty(REDRAWS), np.empty(REDRAWS)
        for at in range(REDRAWS):
            times = np.bincount(random.integers(0, sessions, sessions), minlength=sessions)
            means[at] = (times @ sums) / (times @ sizes)
            upto = np.cumsum(times[sorted_clusters])
            medians[at] = sorted_logs[np.searchsorted(upto, (upto[-1] + 1) // 2)]
        return means, medians


def compare(first: Tally, second: Tally, seed: int) -> dict[str, Any]:
    """The second target against the first, for JSON; a ratio below 1 says that it was faster."""
    common = first.sample.common(second.sample)
    whole = min(first.sample.below, second.sample.below) == 1 << 64
    return {
        "first": first.target.name,
        "second": second.target.name,
        "seed": seed,
        "requests_paired": len(common),
        "paired": "all" if whole else "a sample, drawn by the requests' numbers",
        "ttft_ratio": Ratios.of(_both(common, "ttft_s")).plain(seed),
        "total_ratio": Ratios.of(_both(common, "total_s")).plain(seed),
        "answers": _answers(common),
        "differences": _differences(first, second),
    }


def _both(common: Sequence[tuple[int, Kept, Kept]], name: str) -> list[tuple[int, float, float]]:
    found = []
    for _, a, b in common:
        one, other = getattr(a, name), getattr(b, name)
        if one is not None and other is not None:
            found.append((a.session, one, other))
    return found


def _answers(common: Sequence[tuple[int, Kept, Kept]]) -> dict[str, Any]:
    """Answers that should be equal: temperature 0, both complete."""
    compared = [(at, a, b) for at, a, b in common if a.digest is not None and b.digest is not None]
    different = [at for at, a, b in compared if a.digest != b.digest]
    return {
        "compared": len(compared),
        "different": len(different),
        "first_different": different[:10],
    }


def _differences(first: Tally, second: Tally) -> dict[str, Any]:
    """The second's figure less the first's; None where one has none."""

    def less(one: float | None, other: float | None) -> float | None:
        return None if one is None or other is None else other - one

    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    return {
        **{f"ttft_{n}_s": less(first.ttft.at(s), second.ttft.at(s)) for n, s in shares.items()},
        **{f"total_{n}_s": less(first.total.at(s), second.total.at(s)) for n, s in shares.items()},
        "completed": second.completed - first.completed,
        "failures": second.failures.total() - first.failures.total(),
        "cached_share": less(first.cached_share, second.cached_share),
    }
