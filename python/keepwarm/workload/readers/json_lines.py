"""Records of a log in JSON: one a line, or one document that lists them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from keepwarm.errors import ArgumentError
from keepwarm.workload.readers.opening import Input, OnRead
from keepwarm.workload.readers.skips import Skips

DOCUMENT_BYTES_MAX = 256 << 20
_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def decode(data: bytes) -> Any:
    """A JSON value; of a key that comes twice the last. Raises ValueError with a fixed text."""
    try:
        return _DECODER.decode(data)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise ValueError(
            "it is not UTF-8" if "utf-8" in str(error).lower() else "it is not whole JSON"
        ) from None


def records(
    log: Input, skips: Skips, on_read: OnRead | None = None, *, among_others: bool = False
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Objects with their places, `file:line`. What is no object is counted.

    `among_others`: lines that do not begin like one are a program's other output, and passed over.
    """
    if is_document(log.head()):
        yield from _of_document(log, skips, on_read)
        return
    for number, line in log.lines(skips, on_read):
        if among_others and not line.startswith(b"{"):
            continue
        where = f"{log.name}:{number}"
        try:
            record = decode(line)
        except ValueError as error:
            skips.add(str(error), where)
            continue
        if isinstance(record, dict):
            yield where, record
        else:
            skips.add("it is no JSON object", where)


def is_document(head: bytes) -> bool:
    """Whether JSON spans lines: it begins with a bracket alone, or with a list of objects."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    first_line = text.split(b"\n", 1)[0].strip()
    return first_line in (b"{", b"[") or text[:64].replace(b" ", b"").startswith(b"[{")


def _of_document(
    log: Input, skips: Skips, on_read: OnRead | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        document = decode(log.whole(skips, DOCUMENT_BYTES_MAX, on_read))
    except ArgumentError:
        raise
    except ValueError as error:
        skips.add(f"{error}, as one document (jq -c . writes a record a line)", log.name)
        return
    for place, record in enumerate(document if isinstance(document, list) else [document]):
        where = f"{log.name}[{place}]" if isinstance(document, list) else log.name
        if isinstance(record, dict):
            yield where, record
        else:
            skips.add("it is no JSON object", where)
