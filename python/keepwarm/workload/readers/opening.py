"""Bytes of a log: a file, a pipe or stdin; plain, gz or zst; in bounded pieces and bounded lines.

    Input.open("log.jsonl.gz") -> .head() (decompressed, for telling formats apart)
                               -> .chunks(skips, on_read)  -> .lines(skips, on_read)

A pipe can be read once; what was taken of it for `head` is given again by its first reading.
"""

from __future__ import annotations

import io
import os
import select
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Protocol

from keepwarm.errors import ArgumentError
from keepwarm.workload.readers.skips import Skips

#: A longer line is left out. A prompt of a million tokens is about 4 MiB; images make it longer.
LINE_BYTES_MAX = 64 << 20
HEAD_BYTES = 256 << 10
#: Packed bytes taken at a time. The most that zstd can make of 4 KiB is 128 MiB.
_PACKED_BYTES = 4 << 10
_PLAIN_BYTES = 1 << 20
_WINDOW_BYTES_MAX = 1 << 27
_FIFO_WAIT_MS = 10_000

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
OnRead = Callable[[int], None]


class _Unpacker(Protocol):
    """What zlib's and zstandard's decompression objects have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


@dataclass(slots=True)
class Input:
    """One log. `name` is what places are told by; `size` is None for a pipe."""

    name: str
    path: str
    size: int | None
    _pipe: BinaryIO | None = None
    _taken: list[bytes] = field(default_factory=list)  # of the pipe, packed, for its first reading
    _pipe_head: bytes = b""
    _is_spent: bool = False

    @classmethod
    def open(cls, path: str, name: str) -> Input:
        """Looks at a file, or waits for a pipe's first bytes. Raises ArgumentError, OSError."""
        pipe, size = _pipe_of(path)
        made = cls(path=path, name=name, size=size, _pipe=pipe)
        if pipe is not None:
            made._taken = list(_first(pipe))
            made._pipe_head = made._first_bytes()
        return made

    def head(self) -> bytes:
        """The first bytes, unpacked. Kept for a pipe only, since there may be many files."""
        return self._first_bytes() if self._pipe is None else self._pipe_head

    @property
    def is_pipe(self) -> bool:
        """Whether it can be read only once."""
        return self._pipe is not None

    def close(self) -> None:
        """Lets go of a pipe that is not going to be read."""
        if self._pipe is not None and self.path != "-":
            self._pipe.close()

    def chunks(self, skips: Skips, on_read: OnRead | None = None) -> Iterator[bytes]:
        """Decompressed pieces of at most a MiB, from the beginning.

        Where compressed data is cut short or spoilt, gives what came before and counts it.
        """
        raw = self._raw(on_read)
        first = next(raw, b"")
        if first.startswith(GZIP):
            yield from self._unpacked(first, raw, _gunzip, skips)
        elif first.startswith(ZSTD):
            yield from self._unpacked(first, raw, _unzstd(), skips)
        else:
            if first:
                yield first
            yield from raw

    def lines(self, skips: Skips, on_read: OnRead | None = None) -> Iterator[tuple[int, bytes]]:
        """Lines without their ends, with their numbers from 1; empty ones and those that are too
        long are left out, the latter counted without being held."""
        number, rest, is_long = 1, bytearray(), False
        is_first = True
        for chunk in self.chunks(skips, on_read):
            if is_first:
                chunk, is_first = chunk.removeprefix(b"\xef\xbb\xbf"), False
            head, *others = chunk.split(b"\n")
            if not is_long:
                rest += head
            for following in others:
                if is_long:
                    self._too_long(skips, number)
                elif rest.strip():
                    yield number, bytes(rest)
                number, rest, is_long = number + 1, bytearray(following), False
            if len(rest) > LINE_BYTES_MAX:
                rest, is_long = bytearray(), True
        if is_long:
            self._too_long(skips, number)
        elif rest.strip():
            yield number, bytes(rest)

    def whole(self, skips: Skips, limit: int, on_read: OnRead | None = None) -> bytes:
        """All of it, for a format that is one document. Raises ArgumentError over `limit`."""
        taken = bytearray()
        for chunk in self.chunks(skips, on_read):
            taken += chunk
            if len(taken) > limit:
                raise ArgumentError(
                    f"{self.name}: one JSON document of more than {limit >> 20} MiB is not read: "
                    "write one record a line"
                )
        if taken.startswith(b"\xef\xbb\xbf"):
            del taken[:3]
        return bytes(taken)

    def first_part(self) -> Input:
        """What is known of a pipe beforehand, as a log of its own."""
        head = self._pipe_head
        lines = head if len(head) < HEAD_BYTES else head.rpartition(b"\n")[0]
        return Input(self.name, self.path, None, io.BytesIO(), [lines], lines)

    def _too_long(self, skips: Skips, number: int) -> None:
        skips.add(f"a line of more than {LINE_BYTES_MAX >> 20} MiB", f"{self.name}:{number}")

    def _raw(self, on_read: OnRead | None) -> Iterator[bytes]:
        if self._pipe is None:
            with Path(self.path).open("rb", buffering=_PLAIN_BYTES) as file:
                yield from _counted(file, on_read, b"")
            return
        if self._is_spent:
            raise ArgumentError(f"{self.name} is a pipe and was read: give a file to read it again")
        self._is_spent = True
        taken, self._taken = b"".join(self._taken), []
        try:
            yield from _counted(self._pipe, on_read, taken)
        finally:
            self.close()

    def _unpacked(
        self,
        first: bytes,
        raw: Iterator[bytes],
        make: Callable[[], _Unpacker],
        skips: Skips,
    ) -> Iterator[bytes]:
        unpacker, is_inside = make(), False
        for packed in _pieces(first, raw):
            while packed:
                try:
                    plain = unpacker.decompress(packed)
                except Exception as error:  # zlib.error, ZstdError: neither has a common base
                    _raise_if_window(error, self.name)
                    skips.add("compressed data is spoilt: what follows was not read", self.name)
                    return
                is_inside = True
                for start in range(0, len(plain), _PLAIN_BYTES):
                    yield plain[start : start + _PLAIN_BYTES]
                packed = b""
                if unpacker.eof:  # another member may follow
                    packed, unpacker, is_inside = unpacker.unused_data.lstrip(b"\0"), make(), False
        if is_inside:
            skips.add("the file ends within its compressed data", self.name)

    def _first_bytes(self) -> bytes:
        if self._pipe is not None:
            twin = Input(self.name, self.path, None, _pipe=self._pipe, _taken=[])
            source: Iterator[bytes] = _head_chunks(twin, b"".join(self._taken))
        else:
            source = self.chunks(Skips())
        head = bytearray()
        for chunk in source:
            head += chunk
            if len(head) >= HEAD_BYTES:
                break
        return bytes(head[:HEAD_BYTES])


def _head_chunks(twin: Input, taken: bytes) -> Iterator[bytes]:
    """What a pipe's first bytes unpack to; that they are cut short is no fault of theirs."""
    if taken.startswith(GZIP):
        return twin._unpacked(taken, iter(()), _gunzip, Skips())
    if taken.startswith(ZSTD):
        return twin._unpacked(taken, iter(()), _unzstd(), Skips())
    return iter((taken,))


def _pipe_of(path: str) -> tuple[BinaryIO | None, int | None]:
    """The open pipe, or None and a file's size."""
    if path == "-":
        if sys.stdin is None:
            raise ArgumentError("there is no stdin to read")
        return sys.stdin.buffer, None
    try:
        found = os.stat(path)  # noqa: PTH116  (Path has no name for /dev/fd/63 on all systems)
    except OSError as error:
        raise ArgumentError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ArgumentError(f"{path!r} is not a path: {error}") from None
    if stat.S_ISDIR(found.st_mode):
        raise ArgumentError(
            f"{path} is a folder without coding-agent sessions: give its files, {path}/*.jsonl"
        )
    if stat.S_ISREG(found.st_mode):
        if not os.access(path, os.R_OK):
            raise ArgumentError(f"{path}: this user may not read it")
        return None, found.st_size
    if stat.S_ISFIFO(found.st_mode) or stat.S_ISCHR(found.st_mode):
        return _open_fifo(path), None
    raise ArgumentError(f"{path} is neither a file nor a pipe")


def _open_fifo(path: str) -> BinaryIO:
    """Opens a pipe without waiting for ever for somebody who writes to it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLHUP)
    if not poll.poll(_FIFO_WAIT_MS):
        os.close(descriptor)
        raise ArgumentError(f"{path}: nobody wrote to this pipe for {_FIFO_WAIT_MS // 1000} s")
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "rb", buffering=_PLAIN_BYTES)


def _first(pipe: BinaryIO) -> Iterator[bytes]:
    """The first bytes of a pipe, or all of them where it is short."""
    left = HEAD_BYTES
    while left > 0 and (taken := pipe.read(min(left, _PLAIN_BYTES))):
        left -= len(taken)
        yield taken


def _counted(file: BinaryIO, on_read: OnRead | None, taken: bytes) -> Iterator[bytes]:
    """A file's bytes, `taken` before them; tells how many there were so far."""
    read = len(taken)
    if taken:
        yield taken
    while chunk := file.read(_PLAIN_BYTES):
        read += len(chunk)
        if on_read is not None:
            on_read(read)
        yield chunk


def _pieces(first: bytes, raw: Iterator[bytes]) -> Iterator[bytes]:
    for chunk in chain((first,), raw):
        for start in range(0, len(chunk), _PACKED_BYTES):
            yield chunk[start : start + _PACKED_BYTES]


def _gunzip() -> _Unpacker:
    return zlib.decompressobj(wbits=31)


def _unzstd() -> Callable[[], _Unpacker]:
    try:
        import zstandard
    except ImportError:
        raise ArgumentError(
            'reading .zst needs more packages: pip install "keepwarm[workload]"'
        ) from None
    context = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX)
    return context.decompressobj


def _raise_if_window(error: Exception, name: str) -> None:
    """A window that is too large spoils nothing: it has a remedy."""
    with suppress(AttributeError):
        if "too much memory" in str(error) or "Frame requires" in str(error):
            raise ArgumentError(
                f"{name}: was compressed with a window of more than 128 MiB: compress it again "
                "without --ultra or --long over 27"
            ) from None
