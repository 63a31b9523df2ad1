"""vLLM's offload keys as ours, with their places in the prompt.

A key of vLLM's is the block's hash and four bytes of group. vLLM also notes, for each request, the
token at which each of its keys ends; from that come positions and run heads, even of blocks that
the device or the host pool has. Several groups, or a vLLM without those notes: no runs, each block
is placed by itself (`run_blocks` is 1, a fact of the namespace).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.v1.kv_offload.base import ReqContext

from keepwarm.identity import Namespace
from keepwarm.prompt import Prompt

GROUP_BYTES = 4


def group_of(key: bytes) -> int:
    """The key's cache group."""
    return int.from_bytes(key[-GROUP_BYTES:], "big")


def engine_hash(key: bytes) -> int:
    """The 64 bits of a block's hash by which vLLM's own events name it."""
    return int.from_bytes(key[-GROUP_BYTES - 8 : -GROUP_BYTES], "big")


def noted_ends(context: Any) -> Mapping[bytes, int] | None:
    """vLLM's notes of a request, in the prompt's order within a group; None if it has none."""
    ends = getattr(context, "_offload_key_positions", None)
    return ends if isinstance(ends, dict) else None


@dataclass(frozen=True, slots=True)
class Places:
    """How keys of this engine become prompts."""

    chunk_tokens: int
    """tokens of one chunk of the first group"""
    groups: tuple[int, ...]
    run_blocks: int

    @classmethod
    def of(cls, spec: Any, run_blocks: int) -> Places:
        """`run_blocks` is what the namespace would have where runs are known."""
        groups = tuple(group.group_id for group in spec.config.groups)
        noted = noted_ends(ReqContext(req_id="")) is not None
        runs = run_blocks if noted and len(groups) == 1 else 1
        return cls(spec.tokens_per_block[0] * spec.blocks_per_chunk, groups, runs)

    def from_here_on(self, key: bytes, context: Any) -> list[bytes] | None:
        """All keys of the request from this one on, group after group; None: not noted."""
        ends = noted_ends(context)
        if ends is None or key not in ends:
            return None
        own = group_of(key)
        if len(self.groups) == 1:
            order = list(ends)
            at = ends[key] // self.chunk_tokens - 1
            return order[at:] if order[at] == key else None
        by_group: dict[int, list[bytes]] = {group: [] for group in self.groups}
        for each in ends:
            by_group[group_of(each)].append(each)
        first = [each for each in by_group.pop(own) if ends[each] >= ends[key]]
        return [*first, *itertools.chain.from_iterable(by_group.values())]

    def ordered(self, keys: Iterable[bytes], context: Any) -> list[bytes]:
        """The same keys, by group and then in the prompt's order as far as it is noted."""
        ends = noted_ends(context) or {}
        return sorted(keys, key=lambda key: (group_of(key), ends.get(key, 0)))

    def prompts(self, keys: Sequence[bytes], context: Any, namespace: Namespace) -> list[Prompt]:
        """Neighbouring keys together, in the order given; with `run_blocks` 1, all of them."""
        if self.run_blocks == 1:
            return [namespace.place(self._named(keys, namespace))]
        ends = noted_ends(context) or {}
        order = list(ends)
        found = []
        start = 0
        for at in range(1, len(keys) + 1):
            if at < len(keys) and ends[keys[at]] == ends[keys[at - 1]] + self.chunk_tokens:
                continue
            first = ends[keys[start]] // self.chunk_tokens - 1
            last = ends[keys[at - 1]] // self.chunk_tokens - 1
            heads = order[first - first % self.run_blocks : last + 1 : self.run_blocks]
            names = self._named(keys[start:at], namespace)
            found.append(namespace.place(names, first, self._named(heads, namespace)))
            start = at
        return found

    def _named(self, keys: Sequence[bytes], namespace: Namespace) -> bytes:
        named = []
        for group, each in itertools.groupby(keys, group_of):
            hashes = [bytes(key[:-GROUP_BYTES]) for key in each]
            named.append(namespace.engine_keys(hashes, group))
        return b"".join(named)
