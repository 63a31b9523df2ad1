"""Recent requests, found again by what they share: the memory of the divergence engine.

Bounded by requests, their segments and characters of distinct text; the oldest goes first. Each
tenant has a window of its own, so that nothing is ever compared across tenants.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field

from keepwarm.errors import ArgumentError
from keepwarm.layout.prompts import Identity, Prompt, Stretch

_CHILDREN_COMPARED = 8
_VOTED_MAX = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine may hold. Fewer requests: a cause that returns rarely is not seen.

    More: memory, about 2 bytes for each character of text (4 outside the basic plane), and 300 for
    each segment of a request; the defaults come to 500 MB at most.
    """

    requests: int = 4096
    characters: int = 64 << 20  # of distinct text
    segments: int = 1 << 20  # fields and what stands between them, of all requests

    def __post_init__(self) -> None:
        if self.requests < 2 or self.characters < 1 << 16 or self.segments < 1 << 10:
            raise ArgumentError(
                "a window needs 2 requests, 65,536 characters and 1,024 segments at least"
            )


@dataclass(slots=True, eq=False)
class Node:
    """A prefix that some request had, in the tree of segments."""

    parent: Node | None
    by: Stretch | None
    born: Prompt | None = None
    holders: int = 0
    children: dict[int, Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Warm:
    """What an unbounded prefix cache would have of a prompt."""

    characters: int
    segments: int  # whole ones
    nodes: list[Node]  # of the whole segments


class _Tenant:
    """One tenant's requests."""

    def __init__(self) -> None:
        self.stretches: dict[str, Stretch] = {}
        self.roots: dict[Identity, Node] = {}
        self.lines: dict[int, Prompt] = {}
        self.sessions: dict[str, Prompt] = {}
        self.count = 0


class Window:
    """All tenants' windows under one bound."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.characters = 0
        self.segments = 0
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()
        self._order: deque[tuple[str, Prompt]] = deque()

    def __len__(self) -> int:
        return len(self._order)

    def stretch(self, tenant: str, text: str) -> Stretch:
        """The stretch of this text that the tenant's requests share; new if none has it."""
        known = self._of(tenant).stretches.get(text)
        return known if known is not None else Stretch(text)

    def warm(self, tenant: str, prompt: Prompt) -> Warm:
        """The longest prefix that an earlier request of equal identity had."""
        node = self._of(tenant).roots.get(prompt.identity)
        characters, nodes = 0, []
        for stretch in prompt.stretches:
            if node is None:
                break
            child = node.children.get(id(stretch))
            if child is None:
                recent = itertools.islice(reversed(node.children.values()), _CHILDREN_COMPARED)
                texts = [each.by.text for each in recent if each.by is not None]
                characters += max((common_length(stretch.text, 0, t, 0) for t in texts), default=0)
                break
            characters += len(stretch.text)
            nodes.append(child)
            node = child
        return Warm(characters, len(nodes), nodes)

    def candidates(self, tenant: str, prompt: Prompt) -> list[tuple[int, Prompt]]:
        """Earlier requests that share most, in whatever order, with the characters shared.

        Tools and system text count as shared even where they differ: those are meant to be alike,
        and only a comparison can tell how far they are.
        """
        group = self._of(tenant)
        votes: Counter[Prompt] = Counter()
        shared_lines: Counter[Prompt] = Counter()
        for stretch in prompt.stretches:
            if stretch.last is not None and stretch.last.is_alive:
                votes[stretch.last] += len(stretch.text)
        for line in prompt.new_lines:
            found = group.lines.get(line)
            if found is not None and found.is_alive:
                shared_lines[found] += 2 * 16  # a line's least length twice: near its mean
        votes.update(shared_lines)
        chosen = [each for each, _ in votes.most_common(_VOTED_MAX)]
        previous = group.sessions.get(prompt.session) if prompt.session is not None else None
        if previous is not None and previous not in chosen:
            chosen.append(previous)
        front, rest = 0, []
        for segment, stretch in zip(prompt.segments, prompt.stretches, strict=True):
            if segment.role in ("tools", "system"):
                front += len(segment.text)
            else:
                rest.append((id(stretch), len(segment.text)))
        scored = []
        for each in chosen:
            holds = each.holds
            whole = sum([length for stretch_id, length in rest if stretch_id in holds])
            scored.append((front + whole + shared_lines[each], each))
        return sorted(scored, key=lambda pair: -pair[0])

    def add(self, tenant: str, prompt: Prompt) -> None:
        """Remembers a request, and forgets what the limits no longer allow."""
        group = self._of(tenant)
        node = group.roots.setdefault(prompt.identity, Node(None, None))
        prompt.path.nodes.append(node)
        for stretch in prompt.stretches:
            self._hold(group, stretch, prompt)
            child = node.children.get(id(stretch))
            if child is None:
                child = node.children[id(stretch)] = Node(node, stretch, prompt)
            child.holders += 1
            prompt.path.nodes.append(child)
            node = child
        prompt.path.nodes[0].holders += 1
        for line in prompt.new_lines:
            group.lines[line] = prompt
        if prompt.session is not None:
            group.sessions[prompt.session] = prompt
        group.count += 1
        self.segments += len(prompt.segments)
        self._order.append((tenant, prompt))
        while len(self._order) > 1 and self._is_over():
            self._forget(*self._order.popleft())

    def _is_over(self) -> bool:
        return (
            len(self._order) > self.limits.requests
            or self.characters > self.limits.characters
            or self.segments > self.limits.segments
        )

    def _of(self, tenant: str) -> _Tenant:
        found = self._tenants.get(tenant)
        if found is None:
            found = self._tenants[tenant] = _Tenant()
        return found

    def _hold(self, group: _Tenant, stretch: Stretch, prompt: Prompt) -> None:
        if not stretch.holders:
            group.stretches[stretch.text] = stretch
            self.characters += len(stretch.text)
        stretch.holders += 1
        stretch.last = prompt

    def _forget(self, tenant: str, prompt: Prompt) -> None:
        group = self._of(tenant)
        prompt.is_alive = False
        for node in reversed(prompt.path.nodes):
            node.holders -= 1
            if node.born is prompt:
                node.born = None
            if not node.holders and node.parent is not None:
                del node.parent.children[id(node.by)]
            elif not node.holders:
                del group.roots[prompt.identity]
        for stretch in prompt.stretches:
            stretch.holders -= 1
            if stretch.last is prompt:
                stretch.last = None
            if not stretch.holders:
                del group.stretches[stretch.text]
                self.characters -= len(stretch.text)
        for line in prompt.new_lines:
            if group.lines.get(line) is prompt:
                del group.lines[line]
        if prompt.session is not None and group.sessions.get(prompt.session) is prompt:
            del group.sessions[prompt.session]
        prompt.path.nodes.clear()
        self.segments -= len(prompt.segments)
        group.count -= 1
        if not group.count:
            del self._tenants[tenant]


def common_length(one: str, at: int, other: str, there: int) -> int:
    """How many characters are equal from `one[at]` and `other[there]` on."""
    high = min(len(one) - at, len(other) - there)
    if one[at : at + high] == other[there : there + high]:
        return high
    low, step = 0, 64  # `low` are equal, `high` are not; steps grow, then are halved
    while (
        low + step < high
        and one[at + low : at + low + step] == (other[there + low : there + low + step])
    ):
        low += step
        step *= 2
    high = min(high, low + step)
    while high - low > 1:
        middle = (low + high) // 2
        if one[at + low : at + middle] == other[there + low : there + middle]:
            low = middle
        else:
            high = middle
    return low
