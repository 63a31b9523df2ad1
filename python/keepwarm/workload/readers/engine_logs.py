"""What vLLM's and SGLang's logs have in common: a request, and much later a line on its answer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace

from keepwarm.layout.requests import LoggedRequest, Usage

#: Requests that wait for their answer's line; the oldest goes without it.
WAITING_MAX = 1024


class Waiting:
    """Requests in order of arrival, each held for a while so that its answer can be added."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, LoggedRequest] = OrderedDict()
        self._answered: set[str] = set()

    def add(self, name: str, request: LoggedRequest) -> Iterator[LoggedRequest]:
        """A new request; gives those that waited long enough."""
        if name in self._requests:  # a name that comes again is another request
            yield self._requests.pop(name)
            self._answered.discard(name)
        self._requests[name] = request
        while self._requests:
            oldest = next(iter(self._requests))
            if oldest not in self._answered and len(self._requests) <= WAITING_MAX:
                return
            self._answered.discard(oldest)
            yield self._requests.pop(oldest)

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
