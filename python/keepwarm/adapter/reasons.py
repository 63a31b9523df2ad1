"""Why a prompt token was computed again: a closed list, the labels of the metrics."""

from __future__ import annotations

from enum import StrEnum

from keepwarm.outcomes import Reason


class Recomputed(StrEnum):
    """One for each recomputed token."""

    ABSENT = "absent"
    """never stored under this identity, or long forgotten"""
    EVICTED = "evicted"
    """made room for others"""
    EXPIRED = "expired"
    """its time to live ended"""
    EPOCH = "epoch"
    """of other weights, or another epoch, than this engine's"""
    QUOTA = "quota"
    """its tenant's quota left no room"""
    PENDING = "pending"
    """another engine is storing it"""
    CORRUPT = "corrupt"
    """its bytes did not match their checksum"""
    IDENTITY = "identity"
    """the node refuses the namespace, or the bytes are not as long as a block here"""
    DEADLINE = "deadline"
    """the answer, or the bytes, did not come in time"""
    STORE_DOWN = "store_down"
    """no node, or nobody asks it because it did not answer"""
    THROTTLED = "throttled"
    """the node, or a bound of this connector, sheds load"""
    PLANNER = "planner"
    """it is here, and computing it again is faster"""
    HOST_POOL_FULL = "host_pool_full"
    """it is here, and the engine's host pool has no room for it"""
    AFTER_GAP = "after_gap"
    """behind a block that is not restored"""
    PARTIAL_BLOCK = "partial_block"
    """the rest of a prompt that fills no block"""
    LAST_TOKEN = "last_token"
    """an engine computes a prompt's last token always"""
    LOAD_FAILED = "load_failed"
    """announced as restored, and then the load failed"""
    DISABLED = "disabled"
    """this request, or this engine, does not restore"""


# A reason of the store that is none of ours, and what it comes to for the request.
_MAPPED = {
    Reason.LEASED: Recomputed.THROTTLED,
    Reason.BUSY: Recomputed.THROTTLED,
    Reason.WATERMARK: Recomputed.THROTTLED,
    Reason.INVALID: Recomputed.IDENTITY,
    Reason.TOO_LARGE: Recomputed.IDENTITY,
}


def recomputed(reason: Reason | None) -> Recomputed:
    """The store's reason as ours; None, a miss that nobody explains, is `absent`."""
    if reason is None:
        return Recomputed.ABSENT
    return _MAPPED.get(reason) or Recomputed(reason.value)
