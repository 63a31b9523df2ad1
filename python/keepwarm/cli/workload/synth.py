"""`keepwarm workload synth`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from keepwarm.cli.arguments import check_output
from keepwarm.cli.output import tell
from keepwarm.cli.workload.options import reading
from keepwarm.errors import ArgumentError

KINDS = (
    "agents: long shared instructions, growing contexts. chat: short shared instructions, a few "
    "turns. rag: single requests over shared documents. unique: short prompts that share nothing."
)


def synth(
    out: Annotated[Path, Parameter(negative=())],
    /,
    *,
    kind: Annotated[Literal["agents", "chat", "rag", "unique"], Parameter(help=KINDS)] = "agents",
    requests: int = 100_000,
    seed: int = 0,
    block_tokens: int = 64,
) -> None:
    """Write a generated trace, which says that it is synthetic.

    For trying the other verbs, and for measuring them: any length in
    bounded memory, the same for the same arguments. Its rates are
    evidence about nobody's fleet.

      keepwarm workload synth agents.parquet --kind agents --requests 10000

    Parameters
    ----------
    out
        OUT.parquet, or OUT.jsonl for the same as JSON lines. An existing file is replaced.
    requests
        How many.
    seed
        Another one gives another trace.
    block_tokens
        Tokens of a block.
    """
    from keepwarm.workload import parquet
    from keepwarm.workload.anonymise import write_lines
    from keepwarm.workload.synth import Kind, Synthetic

    check_output(out)
    trace = Synthetic(Kind(kind), requests, seed, block_tokens)
    with reading("generating") as progress:
        if out.suffix == ".parquet":
            parquet.write(out, trace.info, trace.batches(progress))
        elif out.suffix == ".jsonl":
            write_lines(out, trace.info, trace.batches(progress))
        else:
            raise ArgumentError(f"{out}: end its name with .parquet or .jsonl")
    tell(f"{out}: {requests:,} synthetic requests ({trace.info.name})")
