"""Figures of flash: an embedded store over one file against a bare io_uring loop on another.

Both lie in `KEEPWARM_BENCH_FOLDER`, or else in the working folder: a folder for temporary files
is often memory, which says nothing about a disk.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import keepwarm
from keepwarm import _core
from keepwarm.bench.context import BLOCK, MIB, Context, Found, Group, UnavailableError
from keepwarm.bench.limits import Blocks, Shape
from keepwarm.bench.nodes import DEADLINE_S, Client, FailedError, stored
from keepwarm.bench.pairs import Round, interleave, speeds

DEPTH = 32
WAIT_S_MAX = 30.0


@contextmanager
def _folder(needed: int) -> Iterator[Path]:
    base = os.environ.get("KEEPWARM_BENCH_FOLDER") or "."
    free = shutil.disk_usage(base).free
    if free < needed + 1024 * MIB:
        raise UnavailableError(f"{base} has {free} bytes free: set KEEPWARM_BENCH_FOLDER")
    with tempfile.TemporaryDirectory(prefix=".kw-bench-", dir=base) as made:
        yield Path(made).absolute()


def _shape(context: Context) -> Shape:
    """Each round has blocks of its own, so that what is read is not in memory any more."""
    count = (16 if context.quick else 32) * MIB // BLOCK
    return Shape(BLOCK, count, (context.pairs + 2) * count, context.seed, turns=True)


class _Flash(Client):
    """Puts that end when their bytes are on flash, and gets whose bytes come from there."""

    def _count(self, name: str) -> int:
        return int(self.memory.stat()[f"flash_{name}"])

    def write(self, source: Blocks, number: int) -> Round:
        """A round of puts, until the device has them."""
        until = self._count("written") + self._shape.blocks
        first, count = self._shape.first(number), self._shape.blocks
        keys, places = self.keys(first, count), source.places(first)
        start = time.perf_counter()
        # No round's blocks were there before: nothing is to be dropped first, which takes a flush.
        stored(self.space.put_from(keys, places, deadline_s=DEADLINE_S))
        pause = threading.Event()
        while self._count("written") < until:
            if time.perf_counter() - start > WAIT_S_MAX:
                raise FailedError(f"blocks are not on flash after {WAIT_S_MAX:g} s")
            pause.wait(0.0005)
        return Round(time.perf_counter() - start, self._shape.nbytes)

    def read(self, to: Blocks, number: int) -> Round:
        """A round of gets, all of them from the device."""
        before = self._count("promoted")
        taken = self.get(to, number)
        came = self._count("promoted") - before
        if came != self._shape.blocks:
            raise FailedError(f"{came} of {self._shape.blocks} blocks came from flash")
        return taken


def _flash(context: Context) -> Found:
    shape = _shape(context)
    nbytes = shape.block * shape.total
    source, to = Blocks(shape, fill=True), Blocks(shape)
    with _folder(3 * nbytes) as folder:
        try:
            raw = _core.LimitFile(folder / "raw", nbytes, shape.nbytes, DEPTH)
        except OSError as error:
            raise UnavailableError(f"no O_DIRECT with io_uring here: {error}") from error
        with keepwarm.open(
            # Room for two rounds and a half: what was put before is only on flash.
            5 * shape.nbytes // 2,
            flash=[f"{folder / 'flash'}={2 * nbytes}"],
            flash_admission="all",
            state_dir=folder / "state",
            drain_s=0.0,
        ) as memory:
            client = _Flash(memory, shape, "flash")

            def raw_write(number: int) -> Round:
                first, length = shape.first(number), shape.block
                return Round(raw.write(first, shape.blocks, length, False), shape.nbytes)

            def raw_read(number: int) -> Round:
                first, length = shape.first(number), shape.block
                return Round(raw.read(first, shape.blocks, length), shape.nbytes)

            puts = interleave(context.pairs, raw_write, lambda n: client.write(source, n))
            gets = interleave(context.pairs, raw_read, lambda n: client.read(to, n))
            client.check(source, to)  # a round that has left memory again
    depth = {"depth": DEPTH, "round_mib": shape.nbytes // MIB}
    return {
        "flash_get_over_raw": speeds(gets, **depth),
        "flash_put_over_raw": speeds(puts, **depth),
    }


GROUPS = (Group(("flash_get_over_raw", "flash_put_over_raw"), _flash),)
