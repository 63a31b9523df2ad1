"""`keepwarm workload anonymise`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from keepwarm.cli.arguments import check_output
from keepwarm.cli.output import tell, write_result
from keepwarm.cli.workload.options import TraceOptions, reading, tell_skipped

if TYPE_CHECKING:
    from keepwarm.workload.anonymise import Written
    from keepwarm.workload.trace import TraceInfo

#: Of the JSON.
SCHEMA = 1


def anonymise(
    logs: Annotated[
        tuple[str, ...], Parameter(required=True, show_default=False, allow_leading_hyphen=True)
    ] = (),
    /,
    *,
    force: Annotated[bool, Parameter(negative=())] = False,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
    trace: TraceOptions | None = None,
) -> None:
    """Turn logs into a file of hashes that you can hand on.

    Prompts become chained, keyed hashes of their blocks; sessions and
    tenants become keyed hashes; times begin at zero. No text, no name and
    no date is in the file, and every other verb reads it like the logs.
    The key is random and forgotten, unless --key-file names one: then two
    files made with it can be joined, and who has it can test whether a
    text is in them. Ids of logs that hold hashes already are kept as they
    are.

      keepwarm workload anonymise requests.jsonl.gz trace.parquet

    Parameters
    ----------
    logs
        Logs of one format, or -; last the file to write: .parquet, .jsonl, .jsonl.gz, .jsonl.zst.
    force
        Overwrite the file if it exists.
    json_
        What was written, as one JSON object.
    """
    from keepwarm.errors import ArgumentError
    from keepwarm.workload.anonymise import anonymise as write
    from keepwarm.workload.anonymise import check_target

    if len(logs) < 2:
        raise ArgumentError("name at least one log, and the file to write")
    *given, last = logs
    out = Path(last)
    check_target(out, force)
    check_output(out)
    source = (trace or TraceOptions()).open(given, "anonymise")
    with reading("reading") as progress:
        written = write(source, out, force=force, progress=progress)
    if json_:
        write_result(json.dumps(_answer(out, written, source.info), indent=1))
        return
    tell_skipped(source)
    tell(
        f"{out}: {written.requests:,} requests, {written.block_ids:,} ids of blocks of "
        f"{source.info.block_tokens} tokens ({source.info.tokens_are.value}), "
        f"{written.bytes:,} bytes"
    )
    for note in source.info.notes:
        tell(f"note: {note}")


def _answer(out: Path, written: Written, info: TraceInfo) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "kind": "keepwarm.workload.anonymise",
        "file": str(out),
        "requests": written.requests,
        "block_ids": written.block_ids,
        "bytes": written.bytes,
        "format": info.format,
        "block_tokens": info.block_tokens,
        "tokens_are": info.tokens_are.value,
        "notes": list(info.notes),
        "skipped": written.skipped.counts,
        "mended": written.skipped.mended,
    }
