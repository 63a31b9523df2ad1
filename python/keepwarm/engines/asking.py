"""What we ask of a running engine over HTTP: who it is, its figures, and a streamed completion.

    Figures       one scrape of /metrics, to be summed by name and labels
    EngineClient  one engine; each request has a connection and a deadline of its own

No engine's own client: a doctor must run where none is installed.
"""

from __future__ import annotations

import http.client
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

T = TypeVar("T")
ANSWER_S = 10.0
COMPLETION_S = 300.0
LINE_BYTES_MAX = 1 << 20
BODY_BYTES_MAX = 32 << 20


class EngineError(RuntimeError):
    """An engine did not answer as it must: which one, what it said."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One scrape: (name, labels) to value."""

    samples: Mapping[tuple[str, frozenset[tuple[str, str]]], float]

    @classmethod
    def parse(cls, text: str) -> Figures:
        """From the text that Prometheus reads."""
        found = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name, frozenset(sample.labels.items())] = sample.value
        return cls(found)

    def labels(self, name: str, least: float = 0.0) -> list[dict[str, str]]:
        """The label sets under which a name is there, with at least this value."""
        return [
            dict(labels)
            for (found, labels), value in self.samples.items()
            if found == name and value >= least
        ]

    def total(self, name: str, **wanted: str) -> float:
        """Sum over all label sets that have these; 0 where there is none."""
        return sum(
            value
            for (found, labels), value in self.samples.items()
            if found == name and set(wanted.items()) <= labels
        )

    def by(self, name: str, label: str, **wanted: str) -> Counter[str]:
        """Sums by one label's value."""
        made: Counter[str] = Counter()
        for (found, labels), value in self.samples.items():
            if found == name and set(wanted.items()) <= labels:
                made[dict(labels).get(label, "")] += int(value)
        return made

    def has(self, start: str) -> bool:
        """Whether any name begins so."""
        return any(name.startswith(start) for name, _ in self.samples)


@dataclass(slots=True)
class Completion:
    """One streamed answer; times are seconds from just before the connection was made."""

    first_token_s: float = 0.0
    seconds: float = 0.0
    tokens: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    finish: str = ""


class EngineClient:
    """An engine at a URL; raises EngineError, never anything of the network's own."""

    def __init__(self, url: str, token: str | None = None) -> None:
        refused = EngineError(f"{url} is no address of an engine: give http://host:port")
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError:
            raise refused from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise refused
        if token is not None and not (token.isascii() and token.isprintable() and token.strip()):
            raise EngineError("the API key is no line of plain characters: see its file")
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, port
        self._path = parts.path.rstrip("/")
        self._token = token

    def version(self) -> str:
        """The engine's own."""
        return str(self._json("GET", "/version").get("version", "unknown"))

    def models(self) -> list[dict[str, Any]]:
        """What it serves; the first is the base model."""
        found = self._json("GET", "/v1/models").get("data")
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

    def is_well(self) -> bool:
        """Whether /health says so now."""
        try:
            self._body("GET", "/health", None, 2.0)
        except EngineError:
            return False
        return True

    def figures(self) -> Figures:
        """A scrape of /metrics."""
        text = self._body("GET", "/metrics", None, ANSWER_S).decode("utf-8", "replace")
        try:
            return Figures.parse(text)
        except ValueError as error:
            raise EngineError(f"{self.url}/metrics is no metrics text: {error}") from None

    def tokenize(self, text: str, model: str) -> list[int]:
        """The text's token ids."""
        asked = {"model": model, "prompt": text, "add_special_tokens": False}
        return [int(each) for each in self._json("POST", "/tokenize", asked).get("tokens", ())]

    def complete(
        self, prompt: Sequence[int], tokens: int, model: str, timeout_s: float = COMPLETION_S
    ) -> Completion:
        """Exactly so many tokens after the prompt's, the likeliest each time, as they come."""
        asked = {
            "model": model,
            "prompt": list(prompt),
            "max_tokens": tokens,
            "min_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        return self._guarded(lambda: self._streamed(asked, timeout_s))

    def _streamed(self, asked: dict[str, Any], timeout_s: float) -> Completion:
        body = json.dumps(asked).encode()
        made, begun = Completion(), time.perf_counter()
        connection = self._connection(timeout_s)
        try:
            connection.request("POST", f"{self._path}/v1/completions", body, self._headers())
            answer = connection.getresponse()
            if answer.status != 200:
                said = answer.read(2000).decode("utf-8", "replace")
                raise EngineError(f"{self.url}/v1/completions: {answer.status}: {said}")
            for event in _events(answer, begun + timeout_s):
                _take(made, event, time.perf_counter() - begun)
        finally:
            connection.close()
        made.seconds = time.perf_counter() - begun
        if not made.tokens:
            raise EngineError(f"{self.url} ended a completion without a token")
        return made

    def _json(self, method: str, path: str, asked: object = None) -> dict[str, Any]:
        body = self._body(method, path, asked, ANSWER_S)
        try:
            found = json.loads(body)
        except ValueError:
            raise EngineError(f"{self.url}{path} answers no JSON: {body[:80]!r}") from None
        if not isinstance(found, dict):
            raise EngineError(f"{self.url}{path} answers no JSON object: {body[:80]!r}")
        return found

    def _body(self, method: str, path: str, asked: object, timeout_s: float) -> bytes:
        def ask() -> bytes:
            connection = self._connection(timeout_s)
            try:
                body = None if asked is None else json.dumps(asked).encode()
                connection.request(method, f"{self._path}{path}", body, self._headers())
                answer = connection.getresponse()
                got = answer.read(BODY_BYTES_MAX)
            finally:
                connection.close()
            if answer.status != 200:
                said = got[:500].decode("utf-8", "replace")
                raise EngineError(f"{self.url}{path}: {answer.status}: {said}")
            return got

        return self._guarded(ask)

    def _guarded(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except (OSError, http.client.HTTPException) as error:
            why = str(error) or type(error).__name__
            raise EngineError(f"{self.url} does not answer: {why}") from None

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=timeout_s)

    def _headers(self) -> dict[str, str]:
        made = {"Content-Type": "application/json"}
        return made if self._token is None else made | {"Authorization": f"Bearer {self._token}"}


def _events(answer: http.client.HTTPResponse, until: float) -> Iterator[dict[str, Any]]:
    """The objects of a stream of server-sent events, up to [DONE]."""
    while line := answer.readline(LINE_BYTES_MAX):
        if time.perf_counter() > until:
            raise EngineError("a completion did not end in time")
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        try:
            event = json.loads(data)
        except ValueError:
            raise EngineError(f"a completion is cut off: {data[:80]!r}") from None
        if "error" in event:
            raise EngineError(f"a completion failed: {event['error']}")
        yield event


def _take(made: Completion, event: dict[str, Any], at_s: float) -> None:
    usage = event.get("usage")
    if usage:
        made.prompt_tokens = int(usage.get("prompt_tokens", 0))
    for choice in event.get("choices", ()):
        got = choice.get("token_ids") or ()
        if got and not made.tokens:
            made.first_token_s = at_s
        made.tokens.extend(int(each) for each in got)
        made.finish = choice.get("finish_reason") or made.finish
