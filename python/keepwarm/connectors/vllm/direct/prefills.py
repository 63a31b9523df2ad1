"""How long the engine takes to compute prompts, from its own steps: what the planner compares with.

A step counts from when it was scheduled, or from when the one before it was over if that was later:
vLLM schedules ahead. Only steps that are nearly all one prompt's chunk tell what a chunk costs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from keepwarm.connectors.vllm.direct.requests import Tracked
from keepwarm.planner import Planner

STEPS_MAX = 64
SHARE = 0.9
TOKENS_MIN = 16


class Prefills:
    """See the module."""

    def __init__(self, planner: Planner, clock: Callable[[], float]) -> None:
        self._planner = planner
        self._clock = clock
        self._steps: deque[tuple[int, float, tuple[int, int] | None]] = deque(maxlen=STEPS_MAX)
        self._over_s = 0.0

    def scheduled(
        self, number: int, tokens: Mapping[str, int], tracked: Mapping[str, Tracked]
    ) -> None:
        """A step with so many tokens of each request starts."""
        self._steps.append((number, self._clock(), self._chunk(tokens, tracked)))

    def _chunk(
        self, tokens: Mapping[str, int], tracked: Mapping[str, Tracked]
    ) -> tuple[int, int] | None:
        """First token and length of the one prompt's chunk that the step is about, if any."""
        if not tokens:
            return None
        name = max(tokens, key=tokens.__getitem__)
        found = tracked.get(name)
        if tokens[name] < max(TOKENS_MIN, SHARE * sum(tokens.values())) or found is None:
            return None
        return found.request.num_computed_tokens, tokens[name]

    def over(self, numbers: Iterable[int]) -> None:
        """The forward passes of these steps are over."""
        now_s = self._clock()
        for number in numbers:
            while self._steps and self._steps[0][0] <= number:
                step, started_s, chunk = self._steps.popleft()
                if step == number and chunk is not None:
                    self._planner.prefill_step(*chunk, now_s - max(started_s, self._over_s))
        self._over_s = now_s
