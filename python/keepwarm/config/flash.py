"""Flash devices as people write them: PATH, or PATH=SIZE for a file that is made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from keepwarm.config.units import parse_size, shorten, show_size
from keepwarm.errors import ConfigError

DEVICES_MAX = 16
ADMISSIONS = ("reuse", "all")

FlashRow = tuple[list[tuple[str, int | None]], bool, int | None, str, int | None, float | None]
"""Flash as the core takes it: devices, format, bytes a day, admission, segment bytes, patience."""


@dataclass(frozen=True, slots=True)
class Device:
    """A file or block device; `size` is that of a file that does not exist yet."""

    path: Path
    size: int | None = None

    def __str__(self) -> str:
        return str(self.path) if self.size is None else f"{self.path}={show_size(self.size)}"


def parse_flash(value: object, name: str) -> tuple[Device, ...]:
    """Devices from one text with commas between them, or from a list of texts."""
    given = value.split(",") if isinstance(value, str) else value
    if isinstance(given, PathLike) or not isinstance(given, Sequence):
        given = [given]
    devices = tuple(_device(one, name) for one in given if one != "")
    if len(devices) > DEVICES_MAX:
        raise ConfigError(f"{name} has {len(devices)} devices: give at most {DEVICES_MAX}", name)
    paths = [device.path for device in devices]
    for path in paths:
        if paths.count(path) > 1:
            raise ConfigError(f"{name} names {path} twice: give each device once", name)
    return devices


def _device(value: object, name: str) -> Device:
    if isinstance(value, Device):
        return value
    if isinstance(value, PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise ConfigError(
            f"{name} is {shorten(value)}: give PATH, or PATH=SIZE for a file that is made", name
        )
    path, equals, size = value.strip().rpartition("=")
    if not equals:
        path, size = value.strip(), ""
    if not path or (equals and not size):
        raise ConfigError(f"{name} is {value!r}: give PATH, or PATH=SIZE", name)
    return Device(Path(path).absolute(), parse_size(size, name) if size else None)


def parse_admission(value: object, name: str) -> str:
    """Which blocks are written to flash."""
    if value not in ADMISSIONS:
        raise ConfigError(f"{name} is {value!r}: give reuse or all", name)
    return str(value)


def flash_row(
    devices: Sequence[Device],
    *,
    erase: bool = False,
    budget: int | None = None,
    admission: str = "reuse",
    segment: int | None = None,
    patience_s: float | None = None,
) -> FlashRow | None:
    """What the core takes; None without devices."""
    if not devices:
        return None
    rows = [(str(device.path), device.size) for device in devices]
    return rows, erase, budget, admission, segment, patience_s
