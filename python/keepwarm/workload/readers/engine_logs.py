"""What vLLM's and SGLang's logs have in common: a request, and much later a line on its answer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace

from keepwarm.layout.requests import LoggedRequest, Usage

#: Requests that wait for their answer's line, and bytes of lines that they came in; the oldest goes
#: without its answer.
WAITING_MAX = 1024
WAITING_BYTES_MAX = 16 << 20


class Waiting:
    """Requests in order of arrival, each held for a while so that its answer can be added."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, LoggedRequest] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._bytes = 0
        self._answered: set[str] = set()

    def add(self, name: str, request: LoggedRequest, size: int) -> Iterator[LoggedRequest]:
        """A new request of a line of `size` bytes; gives those that waited long enough."""
        if name in self._requests:  # a name that comes again is another request
            yield self._let_go(name)
        self._requests[name] = request
        self._sizes[name] = size
        self._bytes += size
        while self._requests:
            oldest = next(iter(self._requests))
            is_full = len(self._requests) > WAITING_MAX or self._bytes > WAITING_BYTES_MAX
            if oldest not in self._answered and not is_full:
                return
            yield self._let_go(oldest)

    def _let_go(self, name: str) -> LoggedRequest:
        self._answered.discard(name)
        self._bytes -= self._sizes.pop(name)
        return self._requests.pop(name)

    def __contains__(self, name: str) -> bool:
        return name in self._requests

    def get(self, name: str) -> LoggedRequest | None:
        """A request that still waits."""
        return self._requests.get(name)

    def answer(self, name: str, usage: Usage, *, is_last: bool = True) -> None:
        """What is known of a request's answer now."""
        request = self._requests.get(name)
        if request is not None:
            self._requests[name] = replace(request, usage=usage)
            if is_last:
                self._answered.add(name)

    def rest(self) -> Iterator[LoggedRequest]:
        """Those that still wait, at the log's end."""
        yield from self._requests.values()
        self._requests.clear()
