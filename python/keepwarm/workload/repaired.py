"""A log of requests, written again with its requests repaired, and nothing else changed.

    lines of the logs ──► the request in each (readers) ──► layout.fix ──► the file that was named

The one place of Keepwarm that writes prompts: into that file only, which its owner alone can read,
and which appears whole or not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from keepwarm.errors import ArgumentError
from keepwarm.files import replacing
from keepwarm.layout.fix import Rules, fix_bytes
from keepwarm.layout.requests import LoggedRequest
from keepwarm.workload.readers.json_lines import decode, is_document
from keepwarm.workload.readers.opening import Input
from keepwarm.workload.readers.request_log import BODY, Fields, matches, request_of
from keepwarm.workload.readers.rows import BadRecordError
from keepwarm.workload.readers.skips import Skips

__all__ = ["Repaired", "repair_log"]


@dataclass(slots=True)
class Repaired:
    """What was done: records written, those changed, changes by breaker, those left by reason."""

    records: int = 0
    changed: int = 0
    changes: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)


def repair_log(
    logs: Sequence[Input],
    out: Path,
    rules_of: Callable[[LoggedRequest], Rules],
    fields: Fields | None = None,
) -> Repaired:
    """Writes the records of all logs to `out`, their requests repaired by `rules_of` each.

    What is no request is copied as it is, what is no JSON is left out, both counted. Raises
    ArgumentError if a log is not one of requests in JSON lines, or if `out` cannot be written.
    """
    for log in logs:
        _refuse_other_forms(log, out)
    done, skips = Repaired(), Skips()
    with _writing(out) as file:
        for log in logs:
            for number, line in log.lines(skips):
                text = _repaired(line, f"{log.name}:{number}", rules_of, fields or Fields(), done)
                if text is not None:
                    file.write(text + b"\n")
                    done.records += 1
    done.left.update(skips.seal().counts)
    return done


def _refuse_other_forms(log: Input, out: Path) -> None:
    if log.is_pipe:
        raise ArgumentError(f"{log.name}: --fix reads a log twice: give a file")
    if is_document(log.head()):
        raise ArgumentError(
            f"{log.name}: --fix works on JSON lines, and this is one document: write one record a "
            "line"
        )
    with suppress(OSError):
        if out.samefile(log.path):
            raise ArgumentError(f"{out}: --fix would write over the log: name another file")


def _repaired(
    line: bytes,
    where: str,
    rules_of: Callable[[LoggedRequest], Rules],
    fields: Fields,
    done: Repaired,
) -> bytes | None:
    try:
        record = decode(line)
    except ValueError as error:
        done.left[f"{error}; left out"] += 1
        return None
    line = line.strip()
    if not isinstance(record, dict) or not matches(record):
        done.left["it is no request; copied as it is"] += 1
        return line
    try:
        request = request_of(record, where, fields)
        fixed = fix_bytes(line, request.family, rules_of(request), at=_path(record, request))
    except (BadRecordError, ArgumentError) as error:
        done.left[f"{str(error).partition(':')[0]}; copied as it is"] += 1
        return line
    done.changed += bool(fixed.changes)
    done.changes.update(fixed.counts())
    return fixed.body


def _path(record: dict[str, Any], request: LoggedRequest) -> tuple[str, ...]:
    """The keys that lead to the request's body; none where the record itself is the body."""
    for name in BODY:
        inner = _unpacked(record.get(name))
        if inner == request.body:
            return (name,)
        if not isinstance(inner, dict):
            continue
        for deeper in BODY:
            if _unpacked(inner.get(deeper)) == request.body:
                return (name, deeper)
    return ()


def _unpacked(value: object) -> object:
    if isinstance(value, str) and value[:1] == "{":
        with suppress(ValueError):
            return decode(value.encode("utf-8", "surrogatepass"))
    return value


@contextmanager
def _writing(out: Path) -> Iterator[BinaryIO]:
    if out.exists() and not out.is_file():
        raise ArgumentError(f"{out}: is no regular file: name one that may be written over")
    with ExitStack() as stack:
        try:
            part = stack.enter_context(replacing(out, private=True))
        except OSError as error:
            raise ArgumentError(f"{out}: cannot be written: {error.strerror}") from None
        yield stack.enter_context(part.open("wb", buffering=1 << 20))
