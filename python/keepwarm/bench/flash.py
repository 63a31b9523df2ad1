"""Figures of flash: an embedded store over one file against a bare io_uring loop on another."""

from __future__ import annotations

from keepwarm.bench.context import Context, Found, Group, UnavailableError


def _flash(_: Context) -> Found:
    raise UnavailableError("this build keeps blocks in memory alone")


GROUPS = (Group(("flash_get_over_raw", "flash_put_over_raw"), _flash),)
