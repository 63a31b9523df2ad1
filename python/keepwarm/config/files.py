"""Files that settings come from: plain ones, and not endless."""

from __future__ import annotations

import os
import stat
import tomllib
from os import PathLike
from typing import Any

from keepwarm.errors import ConfigError

FILE_BYTES_MAX = 4 << 20


def read_toml(file: str | PathLike[str], setting: str) -> dict[str, Any]:
    """The table in a file. One that is no plain file is refused, and never waited for."""
    try:
        text = _read(file, setting).decode()
        return tomllib.loads(text)
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"file {file} cannot be read: {error.strerror}", setting) from None
    except ValueError as error:  # its own, of UTF-8, and of an endless number
        raise ConfigError(f"file {file} is no TOML: {error}", setting) from None


def _read(file: str | PathLike[str], setting: str) -> bytes:
    # Opening a FIFO would wait for somebody who writes to it; some devices do things when opened.
    _check_plain(os.stat(file), file, setting)  # noqa: PTH116
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as opened:
        _check_plain(os.fstat(descriptor), file, setting)
        content = opened.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(
            f"file {file} has more than {FILE_BYTES_MAX >> 20} MiB: give a file of settings",
            setting,
        )
    return content


def _check_plain(found: os.stat_result, file: str | PathLike[str], setting: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
        kind = kinds.get(stat.S_IFMT(found.st_mode), "a device")
        raise ConfigError(f"file {file} is {kind}: give a plain file", setting)
