"""Rows of logs with text: renders, hashes, finds sessions; looks at the first requests beforehand.

What is true of the whole (where tokens come from, whether there are times and sessions) is told
from a sample, since it must be known before the first batch; notes say so.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from keepwarm.layout.requests import LoggedRequest
from keepwarm.workload.hashing import Hasher
from keepwarm.workload.prompts import Prompts, UnrenderableError, turn_digests
from keepwarm.workload.readers.opening import Input, OnRead
from keepwarm.workload.readers.request_log import Fields
from keepwarm.workload.readers.rows import TOKENS_MAX, BadRecordError, Row, Timed
from keepwarm.workload.readers.skips import Skips
from keepwarm.workload.sessions import Sessions
from keepwarm.workload.trace import TokensAre

Requests = Callable[[Input, Skips, OnRead | None, Fields], Iterator[LoggedRequest]]

_SAMPLE = 256
_SAMPLE_TOKENS = 1 << 20
#: Counts that differ by less say nothing about the tokenizer.
_DIFFERENCE_SHOWN = 0.02


@dataclass(frozen=True, slots=True)
class Sample:
    """What the first requests of a log tell of all."""

    requests: int
    tokens_are: TokensAre
    has_times: bool
    has_sessions: bool
    has_answers: bool
    #: Pieces of ours for a token that the endpoint counted; None where it counted none.
    ratio: float | None


def sample(log: Input, requests: Requests, prompts: Prompts, fields: Fields) -> Sample:
    """Looks at a log's first requests; at those in its first bytes if it is a pipe."""
    looked_at = log.first_part() if log.is_pipe else log
    taken = timed = named = answered = empty = exact = 0
    ours = counted = 0
    generator = requests(looked_at, Skips(), None, fields)
    for request in islice(generator, _SAMPLE):
        taken += 1
        timed += request.time_s is not None
        named += request.session is not None
        answered += request.reply is not None or request.usage.output_tokens is not None
        try:
            measured = prompts.measure(request)
        except UnrenderableError:
            continue
        empty += not measured
        exact += bool(measured) and all(each.is_exact for each in measured)
        reported = request.usage.input_tokens
        if len(measured) == 1 and reported:
            ours += len(measured[0].tokens)
            counted += reported
        if ours > _SAMPLE_TOKENS:
            break
    close = getattr(generator, "close", None)
    if close is not None:
        close()
    if not taken:  # a pipe's first record is longer than what may be looked at
        tokens_are = TokensAre.EXACT if prompts.is_exact else TokensAre.APPROXIMATE
        return Sample(0, tokens_are, True, True, True, None)
    if empty == taken:
        tokens_are = TokensAre.LENGTHS_ONLY
    else:
        is_exact = taken > empty and exact == taken - empty
        tokens_are = TokensAre.EXACT if is_exact else TokensAre.APPROXIMATE
    ratio = ours / counted if ours and counted else None
    return Sample(taken, tokens_are, timed > 0, named > 0, answered > 0, ratio)


def notes_on(
    found: Sample, tokens: str, block_tokens: int, pieces: int, session_field: str
) -> tuple[str, ...]:
    """What a reader should know before believing figures."""
    notes = []
    if found.tokens_are is TokensAre.APPROXIMATE:
        notes.append(
            f"{tokens}; {pieces} pieces stand for a block of {block_tokens} tokens, so block "
            "borders are not the engine's, and what two prompts share is right to about a block"
        )
        if found.ratio is not None:
            notes.append(
                f"endpoints counted {1 / found.ratio:.2f} tokens for each of these pieces in the "
                "first requests; where they counted, their counts are used"
            )
    elif found.tokens_are is TokensAre.LENGTHS_ONLY:
        notes.append("the log has token counts but no prompts: nothing is known to repeat")
    elif found.ratio is not None and abs(1 / found.ratio - 1) > _DIFFERENCE_SHOWN:
        notes.append(
            f"endpoints counted {1 / found.ratio:.3f} tokens for each of these in the first "
            "requests: another tokenizer or chat template may have served them, or prompts are cut"
        )
    if not found.has_times:
        notes.append("the log has no times: one request a second is assumed, in its order")
    if not found.has_sessions and found.tokens_are is not TokensAre.LENGTHS_ONLY:
        missed = f", not by {session_field} either" if session_field else ""
        notes.append(
            f"the log names no sessions{missed}: they are inferred, a request that extends "
            "another's messages or prompt continues it"
        )
    if not found.has_answers:
        notes.append(
            "the log has no answers that are read here, nor counts of their tokens: answers are "
            "taken as empty"
        )
    return tuple(notes)


class TextRows:
    """Reads logs with text, for one reading of a trace."""

    def __init__(
        self,
        requests: Requests,
        prompts: Prompts,
        hasher: Hasher,
        fields: Fields,
        block: int,
        has_times: bool,
    ) -> None:
        self._requests = requests
        self._prompts = prompts
        self._hasher = hasher
        self._fields = fields
        self._block_tokens = block
        self._has_times = has_times
        self._sessions = Sessions()

    def read(self, log: Input, skips: Skips, on_read: OnRead | None) -> Timed[Row]:
        """Rows in the log's order; requests that have no prompt are counted."""
        requests = self._requests(log, skips, on_read, self._fields)
        for time_s, request in timed(requests, skips, self._has_times):
            try:
                for row in self._rows(request):
                    yield time_s, row
            except (UnrenderableError, BadRecordError) as error:
                skips.add(str(error), request.where)

    def _rows(self, request: LoggedRequest) -> Iterator[Row]:
        tenant = self._hasher.name("tenant", request.tenant) if request.tenant else 0
        for made in self._prompts.blocks(request):
            if made.input_tokens > TOKENS_MAX:
                raise BadRecordError("its input tokens are negative or over 2^32")
            session = self._session(request, tenant, made.block_ids, made.input_tokens)
            yield Row(made.input_tokens, made.output_tokens, session, tenant, made.block_ids)

    def _session(self, request: LoggedRequest, tenant: int, ids: array[int], tokens: int) -> int:
        if request.session is not None:
            return self._hasher.name("session", request.session)
        digests = turn_digests(request, self._hasher)
        if digests:
            found = self._sessions.of_turns(digests)
        else:
            whole = min(len(ids), tokens // self._block_tokens)
            found = self._sessions.of_blocks(tenant, ids, whole)
        return self._hasher.name("inferred session", str(found)) if found else 0


def timed(
    items: Iterator[LoggedRequest], skips: Skips | None = None, has_times: bool = False
) -> Timed[LoggedRequest]:
    """Requests with times: its own, else that of the one before; one a second where none has any.

    In a log that `has_times` requests before the first one are counted and left out.
    """
    last_s: float | None = None
    for place, request in enumerate(items):
        if request.time_s is not None:
            last_s = request.time_s
        elif last_s is None and has_times and skips is not None:
            skips.add("it has no time, and none came before it", request.where)
            continue
        yield (float(place) if last_s is None else last_s), request
