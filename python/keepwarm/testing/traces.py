"""Request traces: what a fleet was asked, as block ids; readers for public formats.

A `Request` never holds text: block ids (two requests that begin with the same ids share that
prefix), token counts and an arrival. `Request.token_ids` makes stand-in token ids from the block
ids, so that real block keys come out of them: equal ids give equal tokens.

The public data is looked for at $KEEPWARM_TRACES, else beside the repository in `shared/traces`;
`find` answers None where it is absent, and callers then use `keepwarm.testing.synthetic`, which
calls itself synthetic.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

TRACES_VARIABLE = "KEEPWARM_TRACES"
MOONCAKE_FILE = Path("mooncake-fast25/conversation_trace.jsonl")
WEKA_FILE = Path("weka-claude-code/sessions.tar.zst")
MOONCAKE_BLOCK_TOKENS = 512
_MIX = np.uint64(0x9E3779B97F4A7C15)


class TraceError(ValueError):
    """A trace could not be read: which file, and what is wrong with it."""


def _no_ids() -> array[int]:
    return array("Q")


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt: `block_ids` name its blocks from token 0; the last one may be partial."""

    session: int
    arrival_s: float
    input_tokens: int
    output_tokens: int
    block_tokens: int
    block_ids: array[int] = field(default_factory=_no_ids)

    def whole_blocks(self) -> int:
        """Blocks that are filled to the last token, and so can be kept."""
        return min(len(self.block_ids), self.input_tokens // self.block_tokens)

    def token_ids(self) -> NDArray[np.uint32]:
        """`input_tokens` stand-in token ids; a tail without an id is its session's.

        Equal block ids give equal tokens at their place; different ids give different tokens.
        """
        ids = np.array(self.block_ids, dtype=np.uint64)
        short = self.input_tokens - len(ids) * self.block_tokens
        if short > 0:
            more = -(-short // self.block_tokens)
            own = (np.uint64(1) << np.uint64(63)) | np.uint64(self.session)
            ids = np.concatenate([ids, np.full(more, own, dtype=np.uint64)])
        with np.errstate(over="ignore"):
            place = np.arange(self.block_tokens, dtype=np.uint64)
            mixed = (ids[:, None] * np.uint64(self.block_tokens) + place[None, :]) * _MIX
            mixed ^= mixed >> np.uint64(29)
            mixed *= _MIX
        tokens = (mixed >> np.uint64(33)).astype(np.uint32).reshape(-1)
        return tokens[: self.input_tokens]


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival, and where they come from."""

    name: str
    synthetic: bool
    source: str
    block_tokens: int
    requests: list[Request]

    def sessions(self) -> int:
        """Distinct sessions."""
        return len({request.session for request in self.requests})

    def input_tokens(self) -> int:
        """Tokens asked for, all requests together."""
        return sum(request.input_tokens for request in self.requests)

    def distinct_blocks(self) -> int:
        """Distinct block ids: the working set, in blocks."""
        seen: set[int] = set()
        for request in self.requests:
            seen.update(request.block_ids)
        return len(seen)

    def describe(self) -> str:
        """One line for people; says when nobody ever asked these requests."""
        kind = "synthetic" if self.synthetic else "recorded"
        return (
            f"{self.name} ({kind}: {self.source}), {self.sessions()} sessions, "
            f"{len(self.requests)} requests, {self.input_tokens():,} tokens, "
            f"{self.distinct_blocks():,} distinct blocks of {self.block_tokens} tokens"
        )


@dataclass(frozen=True, slots=True)
class HitRate:
    """What a cache of a given size would have answered."""

    hit_blocks: int
    blocks: int
    hit_tokens: int
    tokens: int

    def by_block(self) -> float:
        """Hit blocks over blocks asked for."""
        return self.hit_blocks / self.blocks if self.blocks else 0.0

    def by_token(self) -> float:
        """Hit tokens over tokens asked for."""
        return self.hit_tokens / self.tokens if self.tokens else 0.0


def replay(requests: Iterable[Request], capacity_blocks: int | None = None) -> HitRate:
    """Hit rate of a prefix-contiguous LRU (tail touched first); None means unbounded.

    A hit counts only while the prefix is unbroken. Reproduces the published reference values.
    """
    cache: OrderedDict[int, None] = OrderedDict()
    hit_blocks = blocks = hit_tokens = tokens = 0
    for request in requests:
        matched = 0
        for block in request.block_ids:
            if block not in cache:
                break
            matched += 1
        hit_blocks += matched
        blocks += len(request.block_ids)
        hit_tokens += min(matched * request.block_tokens, request.input_tokens)
        tokens += request.input_tokens
        for block in reversed(request.block_ids):
            cache[block] = None
            cache.move_to_end(block)
            if capacity_blocks is not None and len(cache) > capacity_blocks:
                cache.popitem(last=False)
    return HitRate(hit_blocks, blocks, hit_tokens, tokens)


def traces_root() -> Path | None:
    """The folder with public traces: $KEEPWARM_TRACES, else `../shared/traces`; None if absent."""
    named = os.environ.get(TRACES_VARIABLE)
    if named:
        return Path(named) if Path(named).is_dir() else None
    for parent in Path(__file__).resolve().parents:
        candidate = parent / "shared" / "traces"
        if candidate.is_dir():
            return candidate
    return None


def find(relative: Path) -> Path | None:
    """A file of the public traces, or None where it is absent."""
    root = traces_root()
    path = root / relative if root is not None else None
    return path if path is not None and path.is_file() else None


def read_mooncake(path: Path, block_tokens: int = MOONCAKE_BLOCK_TOKENS) -> Trace:
    """Reads Mooncake-style JSONL: `timestamp` ms, `input_length`, `output_length`, `hash_ids`.

    These files name no session: each request is its own, sharing shows only in the ids.
    """
    requests = []
    with path.open("r", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            try:
                row = json.loads(line)
                requests.append(
                    Request(
                        session=number,
                        arrival_s=float(row["timestamp"]) / 1000.0,
                        input_tokens=int(row["input_length"]),
                        output_tokens=int(row["output_length"]),
                        block_tokens=int(row.get("block_size", block_tokens)),
                        block_ids=array("Q", row["hash_ids"]),
                    )
                )
            except (ValueError, KeyError, TypeError) as error:
                raise TraceError(f"{path}:{number + 1}: not a request: {error}") from error
    tokens = requests[0].block_tokens if requests else block_tokens
    return Trace("mooncake conversation", False, path.name, tokens, requests)


def read_weka(path: Path, sessions: int, stagger_s: float = 60.0, skip: int = 0) -> Trace:
    """Reads `sessions` distinct coding-agent sessions, one starting every `stagger_s` seconds.

    `path` is the archive (`sessions.tar.zst`) or a folder of `trace_*.json`. Ids are local to a
    session, so each session's are shifted past the previous one's: no sharing between sessions
    survives and none is invented. Sub-agent requests are inlined; exact duplicates are skipped,
    and so are the first `skip` distinct sessions.
    """
    requests: list[Request] = []
    seen: set[tuple[tuple[object, ...], ...]] = set()
    base, block_tokens = 0, 64
    for document in _weka_documents(path):
        identity = tuple((e.get("in"), e.get("out"), e.get("t")) for e in document["requests"])
        if identity in seen:
            continue
        seen.add(identity)
        if len(seen) <= skip:
            continue
        session = len(seen) - 1 - skip
        block_tokens = int(document.get("block_size", block_tokens))
        shifted, highest = _weka_session(document, session, session * stagger_s, base)
        requests.extend(shifted)
        base += highest + 1
        if session + 1 == sessions:
            break
    requests.sort(key=lambda request: request.arrival_s)
    return Trace("coding-agent sessions", False, "weka-claude-code", block_tokens, requests)


def _weka_entries(document: dict[str, Any]) -> Iterator[tuple[float, dict[str, Any]]]:
    for entry in document["requests"]:
        if "requests" not in entry:
            yield entry["t"], entry
            continue
        for nested in entry["requests"]:
            # Nested times are relative to their marker unless they are already past it.
            late = nested["t"] >= entry["t"]
            yield (nested["t"] if late else entry["t"] + nested["t"]), nested


def _weka_session(
    document: dict[str, Any], session: int, start_s: float, base: int
) -> tuple[list[Request], int]:
    requests, highest = [], 0
    block_tokens = int(document.get("block_size", 64))
    for at_s, entry in _weka_entries(document):
        ids: Sequence[int] = entry["hash_ids"]
        if not ids:
            continue
        highest = max(highest, *ids)
        requests.append(
            Request(
                session=session,
                arrival_s=start_s + at_s,
                input_tokens=int(entry["in"]),
                output_tokens=int(entry["out"]),
                block_tokens=block_tokens,
                block_ids=array("Q", [block + base for block in ids]),
            )
        )
    return requests, highest


def _weka_documents(path: Path) -> Iterator[dict[str, Any]]:
    if path.is_dir():
        for file in sorted(path.glob("trace_*.json")):
            yield cast("dict[str, Any]", json.loads(file.read_bytes()))
        return
    # The archive lists its members in order, so it is read as a stream and left when done.
    with _decompressed(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            if not member.isfile() or not member.name.endswith(".json"):
                continue
            data = archive.extractfile(member)
            if data is not None:
                yield cast("dict[str, Any]", json.loads(data.read()))


@contextmanager
def _decompressed(path: Path) -> Iterator[BinaryIO]:
    """The plain bytes of a .zst file: by the zstd command, else by the zstandard package."""
    command = shutil.which("zstd")
    if command is not None:
        process = subprocess.Popen(
            [command, "-dcq", "--long=27", str(path)], stdout=subprocess.PIPE, bufsize=1 << 20
        )
        assert process.stdout is not None
        try:
            yield cast(BinaryIO, process.stdout)
        finally:
            process.stdout.close()
            process.kill()
            process.wait()
        return
    try:
        import zstandard
    except ImportError:
        raise TraceError(
            f"{path}: needs the zstd command or the zstandard package to be read"
        ) from None
    with path.open("rb") as file:
        reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(file)
        yield io.BufferedReader(cast(io.RawIOBase, reader), 1 << 20)
