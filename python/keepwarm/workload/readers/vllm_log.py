"""vLLM's log with `--enable-log-requests` (and, for answers, `--enable-log-outputs`).

Prompts are logged at level DEBUG only (`VLLM_LOGGING_LEVEL=DEBUG`):
    Request ID details: prompt: '...', prompt_token_ids: [...], prompt_embeds shape: None.
    Request ID JSON body: {...}
    Generated response ID details: output_token_ids: [...]
in older versions in the line itself:
    Received request ID: prompt: '...', params: ..., prompt_token_ids: [...], ...
Lines of text carry no year; one is made up, and grows when the month falls back. With
`--logging-config.formatter json`, or a container's log, such a line is the `message` of an object.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from keepwarm.layout.requests import Family, LoggedRequest, Usage
from keepwarm.workload.readers import times
from keepwarm.workload.readers.engine_logs import Waiting
from keepwarm.workload.readers.json_lines import decode
from keepwarm.workload.readers.opening import Input, OnRead
from keepwarm.workload.readers.request_log import Fields, family_of
from keepwarm.workload.readers.rows import BadRecordError
from keepwarm.workload.readers.skips import Skips

_YEAR = 2024  # with a 29th of February
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ISO = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?")
_DATE = re.compile(r"\b(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d+))?")
#: Where a message begins. What looks like another one behind it is part of a prompt or an answer.
_START = re.compile(
    r"Request (?P<details>\S+) details: prompt: "
    r"|Received request (?P<older>\S+): prompt: "
    r"|Request (?P<body>\S+) JSON body: (?=\{)"
    r"|Received request (?P<params>\S+): params: "
    r"|Generated response (?P<answer>\S+?)(?: \(streaming (?:delta|complete)\))?"
    r"(?: details|: output): "
)
# Each is tried at one place and has one `.*`, so that a line's time grows with its length alone.
_DETAILS = re.compile(r"(.*), prompt_token_ids: (\[[\d, ]*\]|None), prompt_embeds")
_OLDER = re.compile(r"(.*), prompt_token_ids: (\[[\d, ]*\]|None), ")
_ANSWER = re.compile(r"(?:.*, )?output_token_ids: (\[[\d, ]*\]|None)(?:, finish_reason: |\r?$)")
_LORA = re.compile(r"lora_request: LoRARequest\(lora_name='([^']{1,200})'")
_MESSAGE, _TIME = ("message", "log", "msg"), ("asctime", "time", "timestamp", "ts")
_SIGNS = (b"Received request ", b" details: prompt: ", b" JSON body: {")


def matches(line: bytes) -> bool:
    """Whether a line tells of a request."""
    return any(sign in line for sign in _SIGNS)


def wrapped(record: dict[str, Any]) -> str | None:
    """The line in an object that a logger wrote in JSON, if it tells of a request."""
    for name in _MESSAGE:
        text = record.get(name)
        if isinstance(text, str) and any(sign.decode() in text for sign in _SIGNS):
            return text
    return None


def has_prompts(head: bytes) -> bool:
    """Whether prompts are in the log, not only that requests came."""
    return any(sign in head for sign in (b" details: prompt: ", b": prompt: ", b" JSON body: {"))


def bodies_only(head: bytes) -> bool:
    """Whether the only prompts are in bodies, without their tokens."""
    return b" details: prompt: " not in head and b": prompt: " not in head


def requests(
    log: Input, skips: Skips, on_read: OnRead | None, fields: Fields
) -> Iterator[LoggedRequest]:
    """The requests of a log in order of arrival; lines on other things are passed over.

    By their tokens, which are exact; by their bodies where no tokens were logged.
    """
    del fields  # this log names neither sessions nor tenants
    yield from _read(log, skips, on_read, takes_bodies=bodies_only(log.head()))


def requests_as_sent(
    log: Input, skips: Skips, on_read: OnRead | None, fields: Fields
) -> Iterator[LoggedRequest]:
    """The same by their bodies, where these were logged: for who wants to see messages."""
    del fields
    yield from _read(log, skips, on_read, takes_bodies=b" JSON body: {" in log.head())


def _read(
    log: Input, skips: Skips, on_read: OnRead | None, *, takes_bodies: bool
) -> Iterator[LoggedRequest]:
    reader = _Reader(takes_bodies)
    for number, line in log.lines(skips, on_read):
        if b"equest " not in line and b"Generated response " not in line:
            continue
        where = f"{log.name}:{number}"
        try:
            yield from reader.line(_text(line), where)
        except UnicodeDecodeError:
            skips.add("it is not UTF-8", where)
        except BadRecordError as error:
            skips.add(str(error), where)
    yield from reader.waiting.rest()


def _text(line: bytes) -> str:
    """A line as text; of an object the time and the message."""
    if not line.startswith(b"{"):
        return line.decode("utf-8")
    try:
        record = decode(line)
    except ValueError as error:
        raise BadRecordError(str(error)) from None
    text = next((record[n] for n in _MESSAGE if isinstance(record.get(n), str)), "")
    at = next((str(record[n]) for n in _TIME if record.get(n)), "")
    return f"{at} {text}"


class _Reader:
    """One log: what waits for its answer, and the year."""

    def __init__(self, takes_bodies: bool) -> None:
        self.waiting = Waiting()
        self._takes_bodies = takes_bodies
        self._year, self._month = _YEAR, 0

    def line(self, text: str, where: str) -> Iterator[LoggedRequest]:
        text = _COLOUR.sub("", text) if "\x1b" in text else text
        found = _START.search(text)
        if found is None:
            return
        name, at = found[found.lastgroup or 0], found.end()
        if found.lastgroup == "answer":
            if answer := _ANSWER.match(text, at):
                self._answer(name, answer[1], is_delta="(streaming delta)" in found[0])
        elif found.lastgroup == "params":
            self._adapter(name, text)
        elif (found.lastgroup == "body") is self._takes_bodies:
            time_s = self._time(text[: found.start()])
            if self._takes_bodies:
                request, name = self._body(text[at:], where, time_s), f"{name} {where}"
            else:
                request = self._prompt(text, at, where, time_s, is_older=found["older"] is not None)
            yield from self.waiting.add(name, request, len(text))

    def _prompt(
        self, text: str, at: int, where: str, time_s: float | None, *, is_older: bool
    ) -> LoggedRequest:
        found = (_OLDER if is_older else _DETAILS).match(text, at)
        quoted = "" if found is None else found[1]
        if is_older:
            quoted, _, _ = quoted.rpartition(", params: ")
        if found is None or not quoted:
            raise BadRecordError("its line is cut short or has another form")
        prompt: Any
        try:
            prompt = _literal(quoted) if found[2] == "None" else decode(found[2].encode())
        except ValueError:
            raise BadRecordError("its line is cut short or has another form") from None
        if not prompt:
            raise BadRecordError("it has no prompt")
        body: dict[str, Any] = {"prompt": prompt}
        if lora := _LORA.search(text, found.end()):
            body["lora"] = lora[1]
        return LoggedRequest(where, Family.OPENAI_COMPLETIONS, body, time_s)

    def _body(self, text: str, where: str, time_s: float | None) -> LoggedRequest:
        try:
            body = decode(text.strip().encode())
        except ValueError:
            raise BadRecordError("its body is cut short (--max-log-len)") from None
        if not isinstance(body, dict) or not any(
            k in body for k in ("messages", "prompt", "input")
        ):
            raise BadRecordError("it has no messages, prompt or input")
        return LoggedRequest(where, family_of(body), body, time_s)

    def _adapter(self, name: str, text: str) -> None:
        """The line on parameters follows the one with the prompt, and alone names the adapter."""
        request, lora = self.waiting.get(name), _LORA.search(text)
        if request is not None and lora and isinstance(request.body, dict):
            request.body["lora"] = lora[1]

    def _answer(self, name: str, ids: str, *, is_delta: bool) -> None:
        request = self.waiting.get(name)
        if request is None:
            return
        so_far = request.usage.output_tokens or 0
        count = ids.count(",") + 1 if ids.strip("[] ") else 0
        if ids == "None":  # a stream's end, whose tokens came before
            count = so_far
        elif is_delta:
            count += so_far
        self.waiting.answer(name, Usage(output_tokens=count), is_last=not is_delta)

    def _time(self, head: str) -> float | None:
        """Of what stands before the message, where no prompt can name a time."""
        if found := _ISO.search(head):
            return times.parsed(found[0])
        if not (found := _DATE.search(head)):
            return None
        month, day, hour, minute, second = (int(found[k]) for k in range(1, 6))
        if month + 6 < self._month:
            self._year += 1
        self._month = month
        try:
            moment = datetime(self._year, month, day, hour, minute, second, tzinfo=UTC)
        except ValueError:
            raise BadRecordError("its time is neither a number nor a date") from None
        return moment.timestamp() + float(f"0.{found[6] or 0}")


def _literal(text: str) -> str:
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, TypeError, MemoryError, RecursionError):
        raise ValueError("no literal") from None
    if not isinstance(value, str):
        raise BadRecordError("it has no prompt")
    return value
