"""Counts what a reading leaves out or changes. Reasons are fixed words, never words of a log."""

from __future__ import annotations

from collections import Counter

from keepwarm.workload.trace import Skipped

_PLACES_MAX = 5


class Skips:
    """How many records for each reason, and the first places of each."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._places: dict[str, list[str]] = {}
        self._mended: Counter[str] = Counter()

    def add(self, reason: str, where: str) -> None:
        """A record was left out."""
        self._counts[reason] += 1
        places = self._places.setdefault(reason, [])
        if len(places) < _PLACES_MAX:
            places.append(where)

    def mend(self, reason: str, count: int = 1) -> None:
        """A record was kept, but changed."""
        self._mended[reason] += count

    def total(self) -> int:
        """Records left out so far."""
        return self._counts.total()

    def seal(self) -> Skipped:
        """All of it, as it is now."""
        places = {reason: list(found) for reason, found in self._places.items()}
        return Skipped(dict(self._counts), places, dict(self._mended))

    def describe(self) -> str:
        """One line: the reasons with their counts and first places."""
        return "; ".join(
            f"{count} records: {reason} ({', '.join(self._places[reason])}"
            f"{', …' if count > len(self._places[reason]) else ''})"
            for reason, count in self._counts.most_common()
        )
