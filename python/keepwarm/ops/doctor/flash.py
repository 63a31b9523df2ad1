"""The node's flash: devices, corrupt blocks, what may be written in a day."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from keepwarm.config import show_size
from keepwarm.ops.doctor.checks import Check, fail, ok, warn

Figures = Mapping[str, Any]


def of_node(figures: Figures) -> Iterator[Check]:
    """All of them; none for a node without flash."""
    for device in figures.get("devices", {}).values():
        yield _device(device)
    if "flash_blocks" in figures:
        yield from _store(figures)


def _device(device: Figures) -> Check:
    name, state, errors = device["name"], device["state"], device["errors"]
    label = f"flash {name}"
    if state == "fenced":
        todo = f"replace {name} and start the node again: its share of blocks is gone until then"
        return fail(label, f"out of use: {device['why']}", todo)
    if state != "live":
        todo = f"make {name} writable, or replace it: nothing new is kept on it"
        return warn(label, f"{state}: {device['why']}", todo)
    figure = (
        f"{show_size(device['capacity_bytes'])}, {device['segments_free']} of "
        f"{device['segments']} segments free, {device['engine']}, {errors} errors"
    )
    if errors:
        return warn(label, figure, f"look at what the kernel and smartctl say about {name}")
    return ok(label, figure)


def _store(figures: Figures) -> Iterator[Check]:
    corrupt = figures.get("flash_corrupt", 0)
    if corrupt:
        todo = "blocks on flash came back with other bytes: test the devices (smartctl -t long)"
        yield fail("corrupt on flash", f"{corrupt} blocks", todo)
    if figures["flash_recovering"]:
        done, all_ = figures["flash_recovered_segments"], figures["flash_recovered_segments_max"]
        yield ok("flash recovery", f"{done} of {all_} segments; serving meanwhile")
    if figures["flash_budget_short"]:
        todo = "blocks stay in memory alone until tomorrow: raise flash_budget, or add a device"
        yield warn("flash budget", "used up for today", todo)
