"""Restore or recompute: how many blocks of a prefix to fetch, from what this engine has measured.

    restoring n blocks    overhead + for each tier: bytes / rate(tier, size)
    computing them again  a · tokens + b · (sum of the tokens' positions)

Both are fitted to what really happened, old samples decaying. Restoring is linear in n where the
tier stays the same, and what it saves grows with n (attention is quadratic), so the best n is 0,
all, or where a tier ends: only those are compared.

Nothing here waits, and no engine is imported. It belongs to one thread, but for `restored`, which a
prober and transfers may call too.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

Mode = Literal["measured", "always", "off"]
Why = Literal["faster", "slower", "cold", "unmeasured", "always", "off", "nothing"]

COLD_SAMPLES = 5
COLD_FACTOR = 0.5
REGRET_SHARE = 0.01  # beyond it decisions use the tail; the bound that must hold is twice this
REGRET_FREE_S = 0.5  # one deadline: what a request may lose before anything is known
PLANS_MAX = 4096


@dataclass(frozen=True, slots=True)
class Plan:
    """How many blocks to restore, and what was predicted for them (for all, if none)."""

    blocks: int
    predicted_restore_s: float
    predicted_recompute_s: float
    why: Why = "nothing"


@dataclass(slots=True)
class _Pending:
    """A plan whose outcome is awaited."""

    plan: Plan
    tiers: Sequence[str]
    first_token: int
    block_tokens: int
    block_bytes: int
    best_s: float


class Pace:
    """Seconds a byte of one tier: a level that moves fast, and a shape over sizes that does not.

    Kept as logarithms, since what matters is how many times slower something is.
    """

    UP, DOWN, SHAPE, USUAL = 0.7, 0.4, 0.1, 0.05
    DOUBT = 0.5  # of the first samples: a factor of e either way, at two of them

    def __init__(self) -> None:
        self.samples = 0
        self.level = 0.0
        self.usual = 0.0
        self.doubt = self.DOUBT
        self._shape: dict[int, float] = {}

    def add(self, nbytes: int, seconds: float) -> None:
        """One transfer of this many bytes took so long."""
        size, seen = _size_class(nbytes), math.log(max(seconds, 1e-9) / nbytes)
        if not self.samples:
            self.level = self.usual = seen
        shape = self._shape.setdefault(size, seen - self.level)
        error = seen - shape - self.level
        self.level += (self.UP if error > 0 else self.DOWN) * error
        self.usual += self.USUAL * (seen - shape - self.usual)
        self._shape[size] = shape + self.SHAPE * (seen - self.level - shape)
        self.doubt += 0.2 * (abs(error) - self.doubt)
        self.samples += 1

    def relax(self) -> None:
        """The way is as it used to be: what was slow only by the way may be tried again."""
        if self.level > self.usual:
            self.level += 0.2 * (self.usual - self.level)

    def seconds(self, nbytes: int, tail: bool = False) -> float:
        """What this many bytes will take; with `tail` an upper estimate."""
        return nbytes * math.exp(self._log(nbytes) + (2 * self.doubt if tail else 0.0))

    def _log(self, nbytes: int) -> float:
        size = _size_class(nbytes)
        if not self._shape:
            return self.level
        nearest = min(self._shape, key=lambda known: (abs(known - size), -known))
        return self.level + self._shape[nearest]


def _size_class(nbytes: int) -> int:
    return nbytes.bit_length() // 2


class Prefill:
    """Seconds of a chunk: `a` a token and `b` for each token before it. Decayed least squares."""

    DECAY = 0.95
    OUTLIER = 4.0

    def __init__(self) -> None:
        self.samples = 0
        self.a = self.b = 0.0
        self._sums = [0.0] * 5  # tt, tx, xx, ty, xy

    def add(self, first: int, tokens: int, seconds: float) -> None:
        """A chunk of `tokens` from position `first` on took so long."""
        t, x = float(tokens), tokens * (first + tokens / 2)
        weight = 1.0
        if self.samples >= COLD_SAMPLES and seconds > self.OUTLIER * self.seconds(first, tokens):
            weight = 1 / self.OUTLIER  # a compilation, a stall: once is no new speed
        new = (t * t, t * x, x * x, t * seconds, x * seconds)
        sums = zip(self._sums, new, strict=True)
        self._sums = [self.DECAY * old + weight * more for old, more in sums]
        self.samples += 1
        self._solve()

    def _solve(self) -> None:
        tt, tx, xx, ty, xy = self._sums
        determinant = tt * xx - tx * tx
        if determinant > 1e-6 * tt * xx:
            self.a = (ty * xx - xy * tx) / determinant
            self.b = (xy * tt - ty * tx) / determinant
        if determinant <= 1e-6 * tt * xx or self.b < 0:
            self.a, self.b = ty / tt, 0.0
        elif self.a < 0:
            self.a, self.b = 0.0, xy / xx

    def seconds(self, first: int, tokens: int) -> float:
        """What a chunk will take."""
        return self.a * tokens + self.b * tokens * (first + tokens / 2)


class Planner:
    """See the module."""

    def __init__(
        self, *, mode: Mode = "measured", clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`always` restores whatever is there, `off` nothing; both still measure."""
        self.mode = mode
        self.stopped = False
        """Whether the last decision was not to restore because of its cost: probes are wanted."""
        self.prefill = Prefill()
        self._clock = clock
        self._lock = threading.Lock()
        self._paces: dict[str, Pace] = {}
        self._overhead_s = 0.0
        self._pending: OrderedDict[Hashable, _Pending] = OrderedDict()
        self._decisions: Counter[str] = Counter()
        self._sums = dict.fromkeys(SUMS, 0.0)
        self._last_restored_s: float | None = None

    def prefill_step(self, first: int, tokens: int, seconds: float) -> None:
        """One request's chunk, from a real step."""
        if tokens > 0 and 0 < seconds < math.inf:
            self._sums["prefill_seconds"] += seconds
            self.prefill.add(first, tokens, seconds)

    def restored(self, tier: str, nbytes: int, seconds: float) -> None:
        """One transfer from this tier, or a probe."""
        if nbytes > 0 and 0 <= seconds < math.inf:
            with self._lock:
                self._paces.setdefault(tier, Pace()).add(nbytes, seconds)
                self._last_restored_s = self._clock()

    def probed(self, tier: str, nbytes: int, seconds: float) -> None:
        """As `restored`, by a probe: what it says of the way to a node holds for other tiers."""
        self.restored(tier, nbytes, seconds)
        self._sums["probes"] += 1
        with self._lock:
            pace = self._paces.get(tier)
            if pace is not None and pace.level <= pace.usual + math.log(2):
                for other in self._paces.values():
                    if other is not pace:
                        other.relax()

    def plan(
        self,
        request: Hashable,
        first_token: int,
        tiers: Sequence[str],
        block_tokens: int,
        block_bytes: int,
        hint_s: float | None = None,
    ) -> Plan:
        """For hits from `first_token` on, one tier each; `hint_s` is the node's own estimate."""
        count = len(tiers)
        with self._lock:
            plan, best_s = self._choose(first_token, tiers, block_tokens, block_bytes, hint_s)
        self._decisions[plan.why] += 1
        if plan.why in ("faster", "slower"):
            self.stopped = plan.blocks == 0
        elif plan.why == "cold":
            self.stopped = True
        if not count:
            return plan
        if plan.blocks:
            self._pending[request] = _Pending(
                plan, tiers, first_token, block_tokens, block_bytes, best_s
            )
            while len(self._pending) > PLANS_MAX:
                self._pending.popitem(last=False)
        elif self.mode == "measured":
            self._regret(self.prefill.seconds(first_token, count * block_tokens) - best_s)
        return plan

    def outcome(self, request: Hashable, restored_blocks: int, seconds: float) -> None:
        """How the plan went: blocks that landed, and how long the request was held for them."""
        pending = self._pending.pop(request, None)
        if pending is None or not 0 <= seconds < math.inf:
            return
        plan, size = pending.plan, pending.block_bytes
        landed = max(0, min(restored_blocks, plan.blocks))
        with self._lock:
            if landed < plan.blocks:
                self._fell_short(pending, landed, seconds)
            expected_s = self._bytes_s(pending.tiers[:landed], size)
            if landed and expected_s is not None:
                # Bounded: what a slower tier costs is that tier's to learn, not every request's.
                extra_s = min(max(0.0, seconds - expected_s), 4 * self._overhead_s + 0.005)
                self._overhead_s += 0.2 * (extra_s - self._overhead_s)
        rest = (len(pending.tiers) - landed) * pending.block_tokens
        first = pending.first_token + landed * pending.block_tokens
        self._sums["restore_seconds"] += seconds
        self._sums["predicted_restore_seconds"] += plan.predicted_restore_s
        self._sums["predicted_recompute_seconds"] += plan.predicted_recompute_s
        self._sums["restored_blocks"] += landed
        self._sums["lost_blocks"] += plan.blocks - landed
        if self.prefill.samples:
            self._regret(seconds + self.prefill.seconds(first, rest) - pending.best_s)

    def forget(self, request: Hashable) -> None:
        """The request ended without an outcome."""
        self._pending.pop(request, None)

    def rate(self, tier: str, nbytes: int) -> float | None:
        """Bytes a second that a transfer of this size from this tier gets; None: unknown."""
        with self._lock:
            pace = self._paces.get(tier)
            return None if pace is None else nbytes / pace.seconds(nbytes)

    @property
    def regret_s(self) -> float:
        """Time lost by decisions, against the best that was known at the time."""
        return self._sums["regret_seconds"]

    @property
    def prefill_s(self) -> float:
        """Time of all prefill steps seen."""
        return self._sums["prefill_seconds"]

    def figures(self) -> dict[str, float]:
        """By name, or name/label; see `keepwarm.adapter.figures`."""
        found = dict(self._sums)
        found |= {f"decisions/{why}": float(self._decisions[why]) for why in WHYS}
        found["prefill_token_seconds"] = self.prefill.a
        found["prefill_position_seconds"] = self.prefill.b
        found["overhead_seconds"] = self._overhead_s
        with self._lock:
            for tier, pace in self._paces.items():
                found[f"restore_bytes_per_second/{tier}"] = (1 << 23) / pace.seconds(1 << 23)
        return found

    # Below this line the lock is held.

    def _choose(
        self,
        first_token: int,
        tiers: Sequence[str],
        block_tokens: int,
        block_bytes: int,
        hint_s: float | None,
    ) -> tuple[Plan, float]:
        """The plan, and the least time that any choice was predicted to take."""
        count = len(tiers)
        if not count:
            return Plan(0, 0.0, 0.0), 0.0
        computed_s = self.prefill.seconds(first_token, count * block_tokens)
        if self.mode != "measured":
            blocks = count if self.mode == "always" else 0
            restore_s = self._restore_s(tiers, block_bytes, hint_s) or 0.0
            why: Why = "always" if self.mode == "always" else "off"
            return Plan(blocks, restore_s, computed_s, why), min(restore_s, computed_s)
        known_s = self._restore_s(tiers, block_bytes, hint_s)
        if not self.prefill.samples or known_s is None:
            return Plan(count, known_s or 0.0, computed_s, "unmeasured"), math.inf
        cold = self._is_cold(tiers)
        careful = cold or self.regret_s > REGRET_FREE_S + REGRET_SHARE * self.prefill_s
        best, best_s, least_s = 0, computed_s, computed_s
        for end in _ends(tiers):
            saved_s = self.prefill.seconds(first_token, end * block_tokens)
            mean_s = self._restore_s(tiers[:end], block_bytes, hint_s) or 0.0
            cost_s = (
                self._restore_s(tiers[:end], block_bytes, hint_s, tail=True) or 0.0
                if careful
                else mean_s
            )
            least_s = min(least_s, mean_s + computed_s - saved_s)
            if cold and cost_s >= COLD_FACTOR * saved_s:
                continue
            if cost_s + computed_s - saved_s <= best_s:
                best, best_s = end, cost_s + computed_s - saved_s
        shown = best or count
        predicted_s = self._restore_s(tiers[:shown], block_bytes, hint_s) or 0.0
        saved_s = self.prefill.seconds(first_token, shown * block_tokens)
        return Plan(best, predicted_s, saved_s, _why(best, cold)), least_s

    def _is_cold(self, tiers: Sequence[str]) -> bool:
        known = (self._paces.get(tier) for tier in set(tiers))
        samples = [pace.samples if pace else 0 for pace in known]
        return min([self.prefill.samples, *samples]) < COLD_SAMPLES

    def _restore_s(
        self, tiers: Sequence[str], block_bytes: int, hint_s: float | None, tail: bool = False
    ) -> float | None:
        seconds = self._bytes_s(tiers, block_bytes, tail)
        if seconds is None:
            if hint_s is None or not hint_s > 0:
                return None
            seconds = hint_s * (math.e if tail else 1.0)
        return self._overhead_s + seconds

    def _bytes_s(self, tiers: Sequence[str], block_bytes: int, tail: bool = False) -> float | None:
        """What these blocks' bytes take; None when a tier was never measured."""
        seconds = 0.0
        for tier, blocks in _counted(tiers).items():
            pace = self._paces.get(tier)
            if pace is None or not pace.samples:
                return None
            seconds += pace.seconds(blocks * block_bytes, tail)
        return seconds

    def _fell_short(self, pending: _Pending, landed: int, seconds: float) -> None:
        """Time that brought too little is a sample too: nothing faster can be claimed of it."""
        nbytes = max(1, landed) * pending.block_bytes
        tier = pending.tiers[min(landed, len(pending.tiers) - 1)]
        pace = self._paces.setdefault(tier, Pace())
        if not pace.samples or seconds > pace.seconds(nbytes):
            pace.add(nbytes, seconds)

    def _regret(self, seconds: float) -> None:
        if 0 < seconds < math.inf:
            self._sums["regret_seconds"] += seconds


def _why(blocks: int, cold: bool) -> Why:
    if blocks:
        return "faster"
    return "cold" if cold else "slower"


def _counted(tiers: Sequence[str]) -> dict[str, int]:
    """Blocks by tier; a prompt's blocks are mostly of one, which `count` sees at once."""
    if not tiers:
        return {}
    alike = tiers.count(tiers[0])
    return {tiers[0]: alike} if alike == len(tiers) else dict(Counter(tiers))


def _ends(tiers: Sequence[str]) -> list[int]:
    """Where runs of one tier end, shortest first."""
    if tiers.count(tiers[0]) == len(tiers):
        return [len(tiers)]
    ends = [at for at in range(1, len(tiers)) if tiers[at] != tiers[at - 1]]
    return [*ends[-ENDS_MAX:], len(tiers)]


ENDS_MAX = 16
WHYS: tuple[Why, ...] = ("faster", "slower", "cold", "unmeasured", "always", "off", "nothing")
SUMS = (
    *("prefill_seconds", "restore_seconds", "predicted_restore_seconds"),
    *("predicted_recompute_seconds", "regret_seconds", "restored_blocks", "lost_blocks", "probes"),
)
