"""`open_trace` and `open_requests`: from paths to a `TraceSource`, or to requests with text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from keepwarm.errors import ArgumentError
from keepwarm.layout.requests import LoggedRequest
from keepwarm.workload.hashing import Hasher
from keepwarm.workload.parquet import ParquetTrace
from keepwarm.workload.prompts import Prompts, render_settings, token_source
from keepwarm.workload.readers import (
    lengths_csv,
    mooncake,
    otel,
    portable,
    request_log,
    sglang_log,
    vllm_log,
    weka,
)
from keepwarm.workload.readers.detect import Format, told
from keepwarm.workload.readers.opening import Input
from keepwarm.workload.readers.request_log import Fields
from keepwarm.workload.readers.rows import Timed, in_order, merged
from keepwarm.workload.readers.skips import Skips
from keepwarm.workload.readers.source import LogTrace, Meter, RowReader, nothing_read, starts_of
from keepwarm.workload.readers.text_rows import Requests, TextRows, notes_on, sample, timed
from keepwarm.workload.trace import (
    BLOCK_TOKENS_MAX,
    Progress,
    Skipped,
    TokensAre,
    TraceInfo,
    TraceSource,
)

PathName = str | PathLike[str]
Paths = PathName | Sequence[PathName]

#: Tokens of a block where neither the format nor the caller says otherwise.
BLOCK_TOKENS = 64
STAGGER_S = 60.0
#: Requests with text that are held to put them in order of time.
_TEXT_WINDOW = 128
_WITH_TEXT: dict[Format, Requests] = {
    Format.REQUESTS: request_log.requests,
    Format.OTEL: otel.requests,
    Format.VLLM: vllm_log.requests,
    Format.SGLANG: sglang_log.requests,
}


@dataclass(frozen=True, slots=True)
class _Wish:
    """What a caller of `open_trace` asked for."""

    block_tokens: int | None
    tokenizer: Path | None
    chat_template: Path | None
    hasher: Hasher
    is_keyed: bool
    fields: Fields
    stagger_s: float


def open_trace(
    paths: Paths,
    *,
    format: str | None = None,
    block_tokens: int | None = None,
    tokenizer: PathName | None = None,
    chat_template: PathName | None = None,
    key: bytes | None = None,
    session_field: str | None = None,
    tenant_field: str | None = None,
    stagger_s: float = STAGGER_S,
) -> TraceSource:
    """A trace of one or more logs of one format; `-` is stdin, a folder holds WEKA's sessions.

    `format` is one of `Format`, where the content does not tell. `block_tokens` matters where the
    format leaves it open. `tokenizer` (a tokenizer.json or its folder) and `chat_template` (a file
    or a model's folder) make counts exact. With the same `key` two traces can be joined.
    `session_field` and `tenant_field` name a record's fields, with dots for nested ones.
    `stagger_s` parts the starts of sessions that have no time of day. Raises ArgumentError.
    """
    if block_tokens is not None and not 1 <= block_tokens <= BLOCK_TOKENS_MAX:
        raise ArgumentError(f"blocks of {block_tokens} tokens: give 1 to {BLOCK_TOKENS_MAX:,}")
    if not 0 <= stagger_s < 1e9:
        raise ArgumentError(f"sessions {stagger_s} s apart: give 0 or more")
    wish = _Wish(
        block_tokens,
        None if tokenizer is None else Path(tokenizer),
        None if chat_template is None else Path(chat_template),
        Hasher(key),
        key is not None,
        Fields(session_field or "", tenant_field or ""),
        stagger_s,
    )
    logs, form, record = _told(paths, format)
    if form is Format.PARQUET:
        return ParquetTrace(Path(logs[0].path))
    if form in _WITH_TEXT:
        return _of_text(logs, form, wish)
    return _of_hashes(logs, form, record, wish)


def open_requests(
    paths: Paths,
    *,
    format: str | None = None,
    session_field: str | None = None,
    tenant_field: str | None = None,
) -> RequestLog:
    """The requests of logs that have text, about in order of time. Raises ArgumentError."""
    logs, form, _ = _told(paths, format)
    if form not in _WITH_TEXT:
        raise ArgumentError(
            f"{logs[0].name} is a trace of the form {form}, without text: give a log of requests"
        )
    return RequestLog(logs, form, Fields(session_field or "", tenant_field or ""))


class RequestLog:
    """Requests with their text, read from the beginning by each `iter`; held in memory only."""

    def __init__(self, logs: Sequence[Input], form: Format, fields: Fields) -> None:
        self.format = form.value
        self._logs = logs
        self._fields = fields
        self._skipped = Skipped({}, {})

    def __iter__(self) -> Iterator[LoggedRequest]:
        return self.read()

    def skipped(self) -> Skipped:
        """What the last complete reading left out or changed."""
        return self._skipped

    def read(self, progress: Progress | None = None) -> Iterator[LoggedRequest]:
        """Reads from the beginning. Raises ArgumentError if there is no request at all."""
        skips, is_empty = Skips(), True
        form, fields = Format(self.format), self._fields
        requests = vllm_log.requests_as_sent if form is Format.VLLM else _WITH_TEXT[form]

        def read(log: Input, skips: Skips, on_read: Any) -> Any:
            found = requests(log, skips, on_read, fields)
            return in_order(timed(found), skips, _TEXT_WINDOW)

        def peek(log: Input) -> Timed[LoggedRequest]:
            return timed(requests(log, Skips(), None, fields))

        meter = Meter(self._logs, progress)
        for _, request in merged(starts_of(self._logs, read, skips, meter, peek), skips):
            is_empty = False
            yield request
        self._skipped = skips.seal()
        if is_empty:
            raise ArgumentError(nothing_read(self._logs, skips))


def opened(paths: Paths) -> list[Input]:
    """The logs, by names that tell them apart."""
    given = [paths] if isinstance(paths, str | PathLike) else list(paths)
    texts: list[str] = []
    for text in [fspath(each) for each in given]:
        inside = weka.files_of(Path(text)) if Path(text).is_dir() else []
        texts += inside or [text]
    if not texts:
        raise ArgumentError("name at least one log, or - for stdin")
    short = ["stdin" if text == "-" else Path(text).name or text for text in texts]
    clear = len(set(short)) == len(short)
    named = zip(texts, short if clear else texts, strict=True)
    return [Input.open(text, name) for text, name in named]


def _told(paths: Paths, named: str | None) -> tuple[list[Input], Format, dict[str, Any]]:
    """The logs that are not empty, their one format, and the first one's first record."""
    logs = opened(paths)
    try:
        return _form_of(logs, named)
    except ArgumentError:
        for log in logs:
            log.close()
        raise


def _form_of(logs: list[Input], named: str | None) -> tuple[list[Input], Format, dict[str, Any]]:
    filled = [log for log in logs if log.head().strip()] or logs[:1]
    form, record = told(filled[0], named)
    if form is Format.WEKA:  # each is looked at when it is read, whole
        return filled, form, record
    for log in filled[1:]:
        other, _ = told(log, named)
        if other is not form:
            raise ArgumentError(
                f"{filled[0].name} is of the form {form}, {log.name} of {other}: give logs of one "
                "form at a time"
            )
    if form in (Format.PARQUET, Format.PORTABLE) and len(filled) > 1:
        raise ArgumentError(
            f"give one trace of the form {form} at a time, since in each times begin at zero: "
            "to join logs, anonymise them together"
        )
    if form is Format.PARQUET and filled[0].is_pipe:
        raise ArgumentError("Parquet cannot be read from a pipe: give the file")
    return filled, form, record


def _of_hashes(logs: list[Input], form: Format, record: dict[str, Any], wish: _Wish) -> TraceSource:
    """A trace of hashes or lengths, where nothing is rendered."""
    names = (wish.fields.session, wish.fields.tenant)
    tokens_are, notes = TokensAre.EXACT, list(_parts_note(logs, form))
    make: Callable[[], RowReader]
    if form is Format.PORTABLE:
        info = portable.info_of(record, logs[0].name)
        return LogTrace(info, logs, lambda: portable.Rows(info.block_tokens))
    if form is Format.WEKA:
        tokens = weka.BLOCK_TOKENS
        notes.append(
            "the sessions have no time of day: one starts every "
            f"{wish.stagger_s:g} s; ids are local to a session, so none share anything"
        )
        make = lambda: weka.Sessions(wish.stagger_s, wish.hasher)  # noqa: E731
    elif form is Format.CSV:
        tokens, tokens_are = wish.block_tokens or BLOCK_TOKENS, TokensAre.LENGTHS_ONLY
        notes.append("the log has token counts but no prompts: nothing is known to repeat")
        make = lambda: lengths_csv.Rows(wish.hasher, names)  # noqa: E731
    else:
        tokens = wish.block_tokens or mooncake.block_tokens_of(record)
        make = lambda: mooncake.Rows(tokens, wish.hasher, names)  # noqa: E731
    return LogTrace(_info(logs, form, tokens, tokens_are, notes), logs, make)


def _of_text(logs: list[Input], form: Format, wish: _Wish) -> TraceSource:
    """A trace of a log with text, of which nothing but hashes remains."""
    if form is Format.VLLM and not vllm_log.has_prompts(logs[0].head()):
        raise ArgumentError(
            f"{logs[0].name} tells that requests came, not what they asked: start vLLM with "
            "--enable-log-requests and VLLM_LOGGING_LEVEL=DEBUG"
        )
    requests, block = _WITH_TEXT[form], wish.block_tokens or BLOCK_TOKENS
    tokens = token_source(wish.tokenizer)
    settings = render_settings(wish.tokenizer, wish.chat_template)
    look = Prompts(wish.hasher, tokens, settings, block)
    found = sample(logs[0], requests, look, wish.fields)
    pieces = block
    # A key is given to join traces: their blocks must then be cut alike, whatever was counted.
    if found.tokens_are is TokensAre.APPROXIMATE and found.ratio is not None and not wish.is_keyed:
        pieces = min(max(round(block * found.ratio), 1), 8 * block)
    prompts = Prompts(wish.hasher, tokens, settings, block, pieces)
    notes = notes_on(found, look.description, block, pieces, wish.fields.session)
    info = _info(logs, form, block, found.tokens_are, notes)

    def make() -> TextRows:
        return TextRows(requests, prompts, wish.hasher, wish.fields, block, found.has_times)

    return LogTrace(info, logs, make)


def _info(
    logs: list[Input], form: Format, block: int, tokens_are: TokensAre, notes: Sequence[str]
) -> TraceInfo:
    more = f" and {len(logs) - 1} more" if len(logs) > 1 else ""
    return TraceInfo(
        name=logs[0].name + more,
        format=form.value,
        source=", ".join(log.name for log in logs[:3]) + (", …" if len(logs) > 3 else ""),
        block_tokens=block,
        tokens_are=tokens_are,
        notes=tuple(notes),
    )


def _parts_note(logs: list[Input], form: Format) -> Iterator[str]:
    if len(logs) > 1 and form is Format.MOONCAKE:
        yield (
            f"{len(logs)} files are taken as parts of one trace: equal ids mean equal blocks, and "
            "their times are of one clock"
        )
