"""Restore or recompute: how many blocks of a prefix to fetch, from what this engine has measured.

    restoring n blocks    overhead + for each tier: bytes / rate(tier, size)
    computing them again  a · tokens + b · (sum of the tokens' positions)

(a step's fixed cost is paid in any case: some of a prompt is always computed). Both are fitted to
what really happened, old samples decaying. Restoring is linear in n where the tier stays the same,
and what it saves grows with n (attention is quadratic), so the best n is 0, all, or where a tier
ends: only those are compared.

Nothing here waits, and no engine is imported. It belongs to one thread, but for `restored`, which a
prober and transfers may call too.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from keepwarm.prefill import FEW_SAMPLES, Prefill

Mode = Literal["measured", "always", "off"]
Why = Literal["faster", "slower", "cold", "tried", "unmeasured", "always", "off", "nothing"]

COLD_SAMPLES = FEW_SAMPLES
COLD_FACTOR = 0.5
# Probes reach one tier alone. Of prompts on another that would never be known otherwise, every so
# many is restored: where the mean says that it pays, and far fewer where it does not.
TRY, TRY_AGAINST = 8, 64
STALE_S = 600.0  # what was measured longer ago is as good as little measured
REGRET_SHARE = 0.01  # beyond it decisions use the tail; the bound that must hold is twice this
REGRET_FREE_S = 0.5  # one deadline: what a request may lose before anything is known
PLANS_MAX = 4096
RUNS_MAX = 16


@dataclass(frozen=True, slots=True)
class Plan:
    """How many blocks to restore, and what was predicted for them (for all, if none)."""

    blocks: int
    predicted_restore_s: float
    predicted_recompute_s: float
    why: Why = "nothing"


class _Run(NamedTuple):
    """Neighbouring blocks of one tier; `end` counts all blocks up to its last."""

    tier: str
    blocks: int
    end: int


class _Asked(NamedTuple):
    """What a plan is for."""

    runs: list[_Run]
    first_token: int
    block_tokens: int
    block_bytes: int


class _Pending(NamedTuple):
    """A plan whose outcome is awaited."""

    plan: Plan
    asked: _Asked


class Pace:
    """Seconds a byte of one tier: a level, which all sizes share, and a shape over sizes.

    Kept as logarithms, since what matters is how many times slower something is. Noise moves the
    level a little, a step that is no noise moves it most of the way at once, and the next samples
    the rest.
    """

    NOISE, STEP, SHAPE, USUAL = 0.2, 0.7, 0.1, 0.05
    DOUBT = 0.5  # of the first samples: a factor of e either way, at two of them
    STEP_MIN = 0.5
    MOST_S = 1e6

    def __init__(self) -> None:
        self.samples = 0
        self.seen_s = 0.0
        self.level = 0.0
        self.usual = 0.0
        self.doubt = self.DOUBT
        self._gain = self.STEP
        self._shape: dict[int, float] = {}

    def add(self, nbytes: int, seconds: float) -> None:
        """One transfer of this many bytes took so long."""
        size, seen = _size_class(nbytes), math.log(min(max(seconds, 1e-9), self.MOST_S) / nbytes)
        if not self.samples:
            self.level = self.usual = seen
        shape = self._shape.setdefault(size, self._shape_of(size))
        error = seen - shape - self.level
        step = abs(error) > max(2 * self.doubt, self.STEP_MIN)
        gain = self._gain = self.STEP if step else max(self.NOISE, 0.7 * self._gain)
        self.level += gain * error
        self.usual += self.USUAL * (seen - shape - self.usual)
        if gain <= self.NOISE:
            self._shape[size] = shape + self.SHAPE * (1 - gain) * error
        self.doubt += 0.2 * (abs(error) * (1 - gain) - self.doubt)
        self.samples += 1

    @property
    def settled(self) -> bool:
        """Whether it moved by noise alone of late."""
        return self._gain <= self.NOISE

    def relax(self) -> None:
        """The way is as it used to be: what was slow only by the way may be tried again."""
        if self.level > self.usual:
            self.level += 0.2 * (self.usual - self.level)

    def seconds(self, nbytes: int, tail: bool = False) -> float:
        """What this many bytes will take; with `tail` an upper estimate."""
        return nbytes * math.exp(self._log(nbytes) + (2 * self.doubt if tail else 0.0))

    def _log(self, nbytes: int) -> float:
        return self.level + self._shape_of(_size_class(nbytes))

    def _shape_of(self, size: int) -> float:
        """Of the nearest size that is known, the larger of two."""
        if not self._shape:
            return 0.0
        return self._shape[min(self._shape, key=lambda known: (abs(known - size), -known))]


def _size_class(nbytes: int) -> int:
    return nbytes.bit_length() // 2


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
        self._lost_s = 0.0  # the part of regret that restores are to blame for
        self._declined = 0  # in a row, for want of samples of a tier
        self._pending: OrderedDict[Hashable, _Pending] = OrderedDict()
        self._decisions: Counter[str] = Counter()
        self._sums = dict.fromkeys(SUMS, 0.0)

    def after_fork(self) -> None:
        """In a forked child, where the parent's lock may be held for ever."""
        self._lock = threading.Lock()

    def prefill_step(self, first: int, tokens: int, seconds: float) -> None:
        """One request's chunk, from a real step."""
        if tokens > 0 and 0 < seconds < math.inf:
            self._sums["prefill_seconds"] += seconds
            self.prefill.add(first, tokens, seconds)

    def restored(self, tier: str, nbytes: int, seconds: float) -> None:
        """One transfer from this tier, or a probe."""
        if nbytes > 0 and 0 <= seconds < math.inf:
            with self._lock:
                pace = self._paces.setdefault(tier, Pace())
                pace.add(nbytes, seconds)
                pace.seen_s = self._clock()

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
        if not tiers:
            self._decisions["nothing"] += 1
            return Plan(0, 0.0, 0.0)
        asked = _Asked(_runs(tiers), first_token, block_tokens, block_bytes)
        with self._lock:
            plan, best_s = self._choose(asked, hint_s)
            self._decisions[plan.why] += 1
            if plan.why in ("faster", "slower", "cold"):
                self.stopped = plan.blocks == 0
            if plan.blocks:
                self._pending[request] = _Pending(plan, asked)
                while len(self._pending) > PLANS_MAX:
                    self._pending.popitem(last=False)
            elif self.mode == "measured":
                self._regret(plan.predicted_recompute_s - best_s)
        return plan

    def outcome(self, request: Hashable, restored_blocks: int, seconds: float) -> None:
        """How the plan went: blocks that landed, and how long the request was held for them."""
        pending = self._pending.pop(request, None)
        if pending is None or not 0 <= seconds < math.inf:
            return
        plan, asked = pending.plan, pending.asked
        landed = max(0, min(restored_blocks, plan.blocks))
        with self._lock:
            expected_s = self._bytes_s(_landed(asked.runs, landed), asked.block_bytes)
            if landed < plan.blocks:
                self._fell_short(asked, landed, seconds)
            elif expected_s is not None and self._settled(asked.runs):
                extra_s = min(max(0.0, seconds - expected_s), 4 * self._overhead_s + 0.005)
                self._overhead_s += 0.2 * (extra_s - self._overhead_s)
            self._sums["restore_seconds"] += seconds
            self._sums["predicted_restore_seconds"] += plan.predicted_restore_s
            self._sums["predicted_recompute_seconds"] += plan.predicted_recompute_s
            self._sums["restored_blocks"] += landed
            self._sums["lost_blocks"] += plan.blocks - landed
            if self.prefill.samples:
                whole_s = self._saved_s(asked, asked.runs[-1].end)
                rest_s = whole_s - self._saved_s(asked, landed)
                self._lost_s += self._regret(seconds + rest_s - whole_s)

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
        found["prefill_step_seconds"] = self.prefill.c
        found["overhead_seconds"] = self._overhead_s
        with self._lock:
            for tier, pace in self._paces.items():
                found[f"restore_bytes_per_second/{tier}"] = (1 << 23) / pace.seconds(1 << 23)
        return found

    # Below this line the lock is held.

    def _choose(self, asked: _Asked, hint_s: float | None) -> tuple[Plan, float]:
        """The plan, and the least time that any choice was predicted to take."""
        count, saved_s = asked.runs[-1].end, self._saved_s(asked, asked.runs[-1].end)
        all_s = self._restore_s(asked.runs, asked.block_bytes, hint_s)
        if self.mode != "measured":
            why: Why = "always" if self.mode == "always" else "off"
            plan = Plan(count if why == "always" else 0, all_s or 0.0, saved_s, why)
            return plan, min(all_s or math.inf, saved_s)
        if all_s is None or not self.prefill.samples:
            # Nothing to compare with. One deadline is what a request may lose, and computing tells.
            dear = all_s is not None and all_s > REGRET_FREE_S
            plan = Plan(
                0 if dear else count, all_s or 0.0, saved_s, "cold" if dear else "unmeasured"
            )
            return plan, math.inf
        cold = self._is_cold(asked.runs)
        careful = cold or self._lost_s > REGRET_FREE_S + REGRET_SHARE * self.prefill_s
        best, best_s, least_s = 0, saved_s, saved_s
        for ends in range(len(asked.runs)):
            runs = asked.runs[: ends + 1]
            mean_s = self._restore_s(runs, asked.block_bytes, hint_s) or 0.0
            tail_s = self._restore_s(runs, asked.block_bytes, hint_s, tail=True) or 0.0
            spared_s = self._saved_s(asked, runs[-1].end)
            cost_s = tail_s if careful else mean_s
            least_s = min(least_s, mean_s + saved_s - spared_s)
            worth = not cold or tail_s < COLD_FACTOR * spared_s
            if worth and cost_s + saved_s - spared_s <= best_s:
                best, best_s = ends + 1, cost_s + saved_s - spared_s
        why = _why(best, cold)
        if why == "cold" and self._is_tried(all_s - saved_s):
            best, why = len(asked.runs), "tried"
        shown = asked.runs[:best] or asked.runs
        predicted_s = self._restore_s(shown, asked.block_bytes, hint_s) or 0.0
        blocks = shown[-1].end if best else 0
        return Plan(blocks, predicted_s, self._saved_s(asked, shown[-1].end), why), least_s

    def _is_tried(self, loss_s: float) -> bool:
        """Whether a prompt that is not surely faster is restored for what it tells of its tier."""
        if self.prefill.samples < COLD_SAMPLES:
            return False  # computing is what tells
        self._declined += 1
        if self._declined < (TRY if loss_s < 0 else TRY_AGAINST):
            return False
        if self._lost_s + max(0.0, loss_s) > REGRET_SHARE * self.prefill_s:
            return False
        self._declined = 0
        return True

    def _saved_s(self, asked: _Asked, blocks: int) -> float:
        return self.prefill.seconds(asked.first_token, blocks * asked.block_tokens)

    def _is_cold(self, runs: Sequence[_Run]) -> bool:
        if self.prefill.samples < COLD_SAMPLES:
            return True
        now_s = self._clock()
        for run in runs:
            pace = self._paces.get(run.tier)
            if pace is None or pace.samples < COLD_SAMPLES or now_s - pace.seen_s > STALE_S:
                return True
        return False

    def _restore_s(
        self, runs: Sequence[_Run], block_bytes: int, hint_s: float | None, tail: bool = False
    ) -> float | None:
        seconds = self._bytes_s(runs, block_bytes, tail)
        if seconds is None:
            if hint_s is None or not hint_s > 0:
                return None
            seconds = hint_s * (math.e if tail else 1.0)
        return self._overhead_s + seconds

    def _bytes_s(self, runs: Sequence[_Run], block_bytes: int, tail: bool = False) -> float | None:
        """What these blocks' bytes take; None when a tier was never measured."""
        blocks: dict[str, int] = {}
        for run in runs:
            blocks[run.tier] = blocks.get(run.tier, 0) + run.blocks
        seconds = 0.0
        for tier, count in blocks.items():
            pace = self._paces.get(tier)
            if pace is None or not pace.samples:
                return None
            seconds += pace.seconds(count * block_bytes, tail)
        return seconds

    def _settled(self, runs: Sequence[_Run]) -> bool:
        """Whether time left over is the request's: a tier's new speed is that tier's to learn."""
        return all(self._paces[run.tier].settled for run in runs)

    def _fell_short(self, asked: _Asked, landed: int, seconds: float) -> None:
        """Time that brought too little is a sample too: nothing faster can be claimed of it."""
        nbytes = max(1, landed) * asked.block_bytes
        run = next((run for run in asked.runs if landed < run.end), asked.runs[-1])
        pace = self._paces.setdefault(run.tier, Pace())
        if not pace.samples or seconds > pace.seconds(nbytes):
            pace.add(nbytes, seconds)

    def _regret(self, seconds: float) -> float:
        lost_s = seconds if 0 < seconds < math.inf else 0.0
        self._sums["regret_seconds"] += lost_s
        return lost_s


def _why(best: int, cold: bool) -> Why:
    if best:
        return "faster"
    return "cold" if cold else "slower"


def _runs(tiers: Sequence[str]) -> list[_Run]:
    """Runs of one tier; a prompt's blocks are mostly of one, which `count` sees at once.

    Where tiers alternate, the last run takes the rest in: the choice gets coarser, not longer.
    """
    if tiers.count(tiers[0]) == len(tiers):
        return [_Run(tiers[0], len(tiers), len(tiers))]
    runs: list[_Run] = []
    for tier, group in itertools.groupby(tiers):
        blocks, end = sum(1 for _ in group), runs[-1].end if runs else 0
        if len(runs) == RUNS_MAX:
            tier, blocks, end = runs[-1].tier, runs[-1].blocks + blocks, end - runs[-1].blocks
            runs.pop()
        runs.append(_Run(tier, blocks, end + blocks))
    return runs


def _landed(runs: Sequence[_Run], blocks: int) -> list[_Run]:
    """The first `blocks` of them."""
    found: list[_Run] = []
    for run in runs:
        take = min(run.blocks, blocks)
        if take:
            found.append(_Run(run.tier, take, run.end - run.blocks + take))
        blocks -= take
    return found


WHYS: tuple[Why, ...] = (
    *("faster", "slower", "cold", "tried", "unmeasured", "always", "off", "nothing"),
)
SUMS = (
    *("prefill_seconds", "restore_seconds", "predicted_restore_seconds"),
    *("predicted_recompute_seconds", "regret_seconds", "restored_blocks", "lost_blocks", "probes"),
)
