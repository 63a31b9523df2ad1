"""Keepwarm: a shared context memory for LLM inference fleets.

>>> import keepwarm
>>> memory = keepwarm.open("64MiB")  # or keepwarm.connect(), to the node on this machine

This file only re-exports; what is not in ``__all__`` is private.
"""

from keepwarm._core import __version__
from keepwarm.client import Memory, Space
from keepwarm.config import Credentials, Tenant
from keepwarm.connecting import connect, open
from keepwarm.errors import (
    ArgumentError,
    AttachError,
    ClosedError,
    ConfigError,
    IdentityError,
    KeepwarmError,
    NodeError,
)
from keepwarm.identity import Extras, MultimodalItem, Namespace
from keepwarm.outcomes import (
    EpochOutcome,
    Event,
    EventBatch,
    Lookup,
    Outcome,
    Reason,
    Reported,
    Status,
    Subscription,
)
from keepwarm.prompt import Prompt

__all__ = [
    "ArgumentError",
    "AttachError",
    "ClosedError",
    "ConfigError",
    "Credentials",
    "EpochOutcome",
    "Event",
    "EventBatch",
    "Extras",
    "IdentityError",
    "KeepwarmError",
    "Lookup",
    "Memory",
    "MultimodalItem",
    "Namespace",
    "NodeError",
    "Outcome",
    "Prompt",
    "Reason",
    "Reported",
    "Space",
    "Status",
    "Subscription",
    "Tenant",
    "__version__",
    "connect",
    "open",
]
