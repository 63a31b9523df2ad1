"""What several verbs ask in the same words: which trace, and which model at which costs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from keepwarm.cli.arguments import refuse_options
from keepwarm.cli.output import complain
from keepwarm.workload.costs import MFU, CostModel, cost_model
from keepwarm.workload.geometry import Geometry, geometry
from keepwarm.workload.trace import Progress, TraceSource


@Parameter(name="*", group=Group("How the logs are read", sort_key=8))
@dataclass(frozen=True, slots=True)
class TraceOptions:
    """How logs are read."""

    format: Annotated[
        str | None,
        Parameter(
            help="The logs' format, where their content does not tell it: requests, otel, vllm, "
            "sglang, mooncake, weka, csv or keepwarm-jsonl."
        ),
    ] = None
    block_tokens: Annotated[
        int | None, Parameter(help="Tokens of a block, where the format leaves it open.")
    ] = None
    session_field: Annotated[
        str | None, Parameter(help="A record's field that names its session; dots for nested ones.")
    ] = None
    tenant_field: Annotated[
        str | None, Parameter(help="A record's field that names its tenant.")
    ] = None
    tokenizer: Annotated[
        Path | None,
        Parameter(
            help="The model's tokenizer.json, or its folder: without it tokens of text are "
            "approximate."
        ),
    ] = None
    chat_template: Annotated[
        Path | None,
        Parameter(help="A chat template or its folder; without it the one beside the tokenizer."),
    ] = None
    key_file: Annotated[
        Path | None,
        Parameter(help="A file of 16 bytes or more, so that traces made with it can be joined."),
    ] = None
    stagger: Annotated[
        float, Parameter(help="Seconds between the starts of sessions that have no time of day.")
    ] = 60.0

    def open(self, paths: Sequence[str], verb: str) -> TraceSource:
        """One trace of these logs; raises ArgumentError with the reason."""
        refuse_options(paths, f"workload {verb}")
        from keepwarm.workload.hashing import key_of_file
        from keepwarm.workload.readers import open_trace

        return open_trace(
            list(paths),
            format=self.format,
            block_tokens=self.block_tokens,
            session_field=self.session_field,
            tenant_field=self.tenant_field,
            tokenizer=self.tokenizer,
            chat_template=self.chat_template,
            key=None if self.key_file is None else key_of_file(self.key_file),
            stagger_s=self.stagger,
        )


@Parameter(name="*", group=Group("What computing and keeping cost", sort_key=9))
@dataclass(frozen=True, slots=True)
class CostOptions:
    """What computing, restoring and keeping cost."""

    kv_dtype: Annotated[
        str,
        Parameter(
            help="What the engine's KV cache has, such as fp8, where its flags say so. Default: "
            "as the model.",
            show_default=False,
        ),
    ] = ""
    gpu: Annotated[str, Parameter(help="l4, l40s, a100, h100, h200, b200 or mi300x.")] = "h100"
    gpus: Annotated[
        int, Parameter(help="GPUs of one replica. Makes prompts faster, not cheaper.")
    ] = 1
    mfu: Annotated[float, Parameter(help="Share of the GPU's peak that long prompts reach.")] = MFU
    prefill_tokens_per_second: Annotated[
        float | None,
        Parameter(help="Measured at the beginning of a prompt, instead of the GPU's peak."),
    ] = None
    gpu_hour: Annotated[float | None, Parameter(help="Your price for an hour of one GPU.")] = None
    prices: Annotated[
        Path | None,
        Parameter(help="A TOML file with your prices and rates: any part of prices.toml."),
    ] = None

    def model(self, model: str) -> Geometry:
        """What a model keeps for a token."""
        return geometry(model, self.kv_dtype)

    def costs(self, model: Geometry, block_tokens: int) -> CostModel:
        """Raises ConfigError that names what cannot be."""
        return cost_model(
            model,
            block_tokens,
            gpu=self.gpu,
            gpus=self.gpus,
            mfu=self.mfu,
            gpu_hour=self.gpu_hour,
            prefill_tokens_per_s=self.prefill_tokens_per_second,
            prices=self.prices,
        )

    def hardware(self) -> str:
        """For a sentence."""
        return f"{self.gpus} x {self.gpu.upper()}"


@contextmanager
def reading(what: str) -> Iterator[Progress | None]:
    """A bar on standard error while a trace is read, where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, whole: bar.update(task, completed=done, total=whole)


def tell_skipped(source: TraceSource) -> None:
    """Says on standard error what the last reading left out, with places."""
    skipped = source.skipped()
    for reason, count in sorted(skipped.counts.items(), key=lambda item: -item[1]):
        places = ", ".join(skipped.places.get(reason, [])[:3])
        records = "record" if count == 1 else "records"
        complain(f"keepwarm: {count} {records}: {reason}{f' ({places})' if places else ''}")
    for reason, count in skipped.mended.items():
        complain(f"keepwarm: {count} records kept: {reason}")


def flags(options: object) -> list[str]:
    """The command line's words for what is not as by default, of a group of options."""
    found = []
    for each in fields(options):  # type: ignore[arg-type]
        value = getattr(options, each.name)
        if value != each.default:
            found += [f"--{each.name.replace('_', '-')}", str(value)]
    return found
