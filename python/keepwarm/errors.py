"""Everything that Keepwarm raises.

    Exception
    └── KeepwarmError           any of these; by itself: a fault of Keepwarm's own
        ├── ConfigError         a setting that cannot be; .setting names it  (also a ValueError)
        ├── IdentityError       a namespace that cannot be; .field names it  (also a ValueError)
        ├── ArgumentError       a call that cannot be made as it was asked   (also a ValueError)
        ├── AttachError         the node refuses the namespace; the text says in what it differs
        ├── ClosedError         the memory, or the node, was closed before the call
        └── NodeError           a node cannot be started, reached or asked

What a cache may answer is no error: a miss, a pending block, a shed put, a node that is gone are
outcomes (`keepwarm.Outcome`), and the calls on the path of a request return only those once their
arguments are right.
"""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "AttachError",
    "ClosedError",
    "ConfigError",
    "IdentityError",
    "KeepwarmError",
    "NodeError",
]


class KeepwarmError(Exception):
    """Base of all; by itself a fault of Keepwarm's own, which deserves a report."""


class ConfigError(KeepwarmError, ValueError):
    """A setting that cannot be."""

    def __init__(self, message: str, setting: str | None = None) -> None:
        super().__init__(message)
        self.setting = setting


class IdentityError(KeepwarmError, ValueError):
    """A namespace, or a fact of a request, that is missing or cannot be."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ArgumentError(KeepwarmError, ValueError):
    """A call that cannot be made as it was asked: the text names the argument and the remedy."""


class AttachError(KeepwarmError):
    """The node refuses the namespace: the text says in what it differs."""


class ClosedError(KeepwarmError):
    """The memory, or the node, was closed before the call."""


class NodeError(KeepwarmError):
    """A node cannot be started, reached or asked: the text says which and what to do."""
