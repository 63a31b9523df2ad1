"""Keepwarm: a shared context memory for LLM inference fleets.

This file only re-exports; what is not in ``__all__`` is private.
"""

from keepwarm._core import __version__

__all__ = ["__version__"]
