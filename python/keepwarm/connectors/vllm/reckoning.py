"""Where each prompt token of a request came from, as far as a tier can tell.

    0 ──device──┬──external: host, or restored by us──┬──recomputed, by reason──┬──no block── prompt

vLLM says how many tokens are of the first two kinds; which of the external ones we restored, and
why the rest is computed, is known block by block from what the request asked and got.
"""

from __future__ import annotations

from keepwarm.adapter.accounting import Accounting
from keepwarm.adapter.reasons import Recomputed
from keepwarm.connectors.vllm.asking import Asking
from keepwarm.connectors.vllm.places import group_of, noted_ends


def reckon(
    accounting: Accounting,
    req_id: str,
    request: Asking | None,
    chunk_tokens: int,
    prompt: int,
    device: int,
    external: int,
) -> None:
    """Notes one admission; a later one of the same request replaces it."""
    accounting.begin(req_id, prompt)
    accounting.device(req_id, device)
    blocks = _blocks(request, prompt)
    start, end = device, device + external
    for key, stop in blocks:
        tokens = min(stop, end) - max(stop - chunk_tokens, start)
        if tokens > 0 and request is not None and key in request.landed:
            accounting.restored(req_id, request.landed[key], tokens)
            external -= tokens
    accounting.host(req_id, external)
    whole = blocks[-1][1] if blocks else 0
    gap = False
    for key, stop in blocks:
        tokens = stop - max(stop - chunk_tokens, end)
        if tokens > 0:
            why = _why(request, key, gap, last=stop == prompt)
            gap = gap or why is not Recomputed.LAST_TOKEN
            accounting.missed(req_id, why, tokens)
    accounting.missed(req_id, Recomputed.PARTIAL_BLOCK, prompt - max(whole, end))


def _blocks(request: Asking | None, prompt: int) -> list[tuple[bytes, int]]:
    """Keys of the prompt's full blocks in the first group, with the tokens at which they end."""
    ends = None if request is None else noted_ends(request.context)
    if not ends:
        return []
    first = group_of(request.keys[0] if request and request.keys else next(iter(ends)))
    return [(key, end) for key, end in ends.items() if group_of(key) == first and end <= prompt]


def _why(request: Asking | None, key: bytes, gap: bool, last: bool) -> Recomputed:
    """Why one block is computed; `gap`: one before it is, too."""
    if request is None:
        return Recomputed.DISABLED
    if (failed := request.failed.get(key)) is not None:
        return failed
    answer = request.answer
    if answer is None or key not in request.places:
        # vLLM did not ask for it: the device or the host pool has it, or the request reads nothing.
        if gap:
            return Recomputed.AFTER_GAP
        return Recomputed.LAST_TOKEN if last else Recomputed.DISABLED
    if not request.hit(key):
        return answer.miss or Recomputed.ABSENT
    declined = request.places[key] < answer.prefix and key not in request.landed
    if declined and request.limit is not None:
        return request.limit
    return Recomputed.LAST_TOKEN if last and not gap else Recomputed.AFTER_GAP
