"""`keepwarm lint`: what breaks prefixes in a log of requests, what it costs, how to mend it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from keepwarm.cli.arguments import check_output, refuse_options
from keepwarm.cli.exits import FAILED
from keepwarm.cli.output import write_result
from keepwarm.errors import ArgumentError
from keepwarm.files import write_whole

if TYPE_CHECKING:
    from keepwarm.layout.findings import Finding
    from keepwarm.layout.lint import Settings
    from keepwarm.layout.money import Prices
    from keepwarm.layout.report import FixOutcome, LintResult, Threshold
    from keepwarm.workload.readers import RequestLog

TargetName = Literal["engine", "anthropic", "openai"]
FailOn = Literal["error", "warning", "note", "none"]


def _flag(text: str, group: str, **more: Any) -> Any:
    return Parameter(help=text, group=group, negative=(), show_default=False, **more)


def _read(text: str, **more: Any) -> Any:
    return _flag(text, "What is read", **more)


def _judged(text: str) -> Any:
    return _flag(text, "What counts")


def _written(text: str, **more: Any) -> Any:
    return _flag(text, "What is written", **more)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is read, and how."""

    tokenizer: Annotated[
        Path | None,
        _read(
            "The model's folder, or its tokenizer.json with the chat template beside it: its own "
            "tokens and template. Without it both are approximations, and the output says so."
        ),
    ] = None
    template: Annotated[
        Path | None,
        _read("A folder of a model, whose chat template is looked at alone, without a log."),
    ] = None
    target: Annotated[
        TargetName | None,
        _read("Whom the requests are for. Without it the model's name says."),
    ] = None
    format: Annotated[str | None, _read("The log's format, where its content does not tell.")] = (
        None
    )
    session_field: Annotated[
        str | None, _read("The field of a record that names its session; dots for nested ones.")
    ] = None
    tenant_field: Annotated[
        str | None, _read("The field of a record that names its tenant; dots for nested ones.")
    ] = None

    def open(self, logs: Sequence[str]) -> RequestLog:
        """The logs' requests. Raises ArgumentError."""
        from keepwarm.workload.readers import open_requests

        refuse_options(logs, "lint")
        try:
            return open_requests(
                list(logs),
                format=self.format,
                session_field=self.session_field,
                tenant_field=self.tenant_field,
            )
        except OSError as error:
            name = error.filename or logs[0]
            raise ArgumentError(f"{name}: {error.strerror or error}") from None


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """What findings cost, and which of them fail."""

    fail_on: Annotated[
        FailOn | None,
        _judged(
            "The severity from which on the exit code is 1. Default: warning, or none where "
            "--max-lost-tokens is given."
        ),
    ] = None
    max_lost_tokens: Annotated[
        float | None,
        _judged("The share of prompt tokens that may be lost before it is 1, as 0.02 for 2 %."),
    ] = None
    price: Annotated[
        list[str] | None,
        _judged(
            "What a model costs: model=input,cached,write per million tokens; * is any other "
            "model. May be repeated."
        ),
    ] = None
    prices: Annotated[
        Path | None,
        _judged(
            'A JSON file of prices: {"currency": "EUR", "models": {"name": {"input": 2, '
            '"cached": 0.2}}}.'
        ),
    ] = None

    def threshold(self) -> Threshold:
        """From where on a result fails."""
        from keepwarm.layout.findings import Severity
        from keepwarm.layout.report import Threshold

        least = self.fail_on or ("none" if self.max_lost_tokens is not None else "warning")
        return Threshold(None if least == "none" else Severity(least), self.max_lost_tokens)

    def paid(self) -> Prices:
        """The operator's own prices, before any list's."""
        from keepwarm.layout.money import Prices, parse_price, read_prices

        own = {} if self.prices is None else read_prices(self.prices)
        currency = next((each.currency for each in own.values()), "USD")
        return Prices(own | dict(parse_price(text, currency) for text in self.price or []))


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """Where the result goes."""

    json: Annotated[bool, _written("One JSON object instead of the list.")] = False
    sarif: Annotated[
        str | None,
        _written(
            "Writes SARIF 2.1.0 to this file; - writes it instead of the list.",
            allow_leading_hyphen=True,
        ),
    ] = None
    fix: Annotated[
        Path | None,
        _written(
            "Writes the log with its safe repairs to this file, and says what they gain. The one "
            "output with text in it: only you can read it."
        ),
    ] = None


def lint(
    *logs: Annotated[str, Parameter(allow_leading_hyphen=True)],
    reading: Reading = Reading(),
    judging: Judging = Judging(),
    writing: Writing = Writing(),
) -> int:
    """Find what breaks prompt prefixes in logs of requests, what it costs, and how to mend it.

    Text is read in memory only and never quoted: findings name fields and
    positions. Exit code 0 if no finding reaches the threshold, 1 if one
    does, 2 if the command makes no sense. docs/lint.md explains all
    nineteen breakers.

      keepwarm lint requests.jsonl                       dearest cause first
      keepwarm lint requests.jsonl --fix repaired.jsonl  the safe repairs
      keepwarm lint --template ./model                   a template alone

    Parameters
    ----------
    logs
        Logs of requests, as JSON lines and other forms, plain, gzip or zstd; - is standard input.
    """
    if writing.json and writing.sarif == "-":
        raise ArgumentError("--json and --sarif - both take standard output: give SARIF a file")
    threshold = judging.threshold()
    if reading.template is not None:
        if logs or writing.fix is not None:
            raise ArgumentError(
                "--template looks at a template alone: with a log, name the folder by --tokenizer"
            )
        return _conclude(_template_result(reading.template), threshold, None, writing, {})
    if not logs:
        raise ArgumentError("name a log of requests, or a model's folder by --template")
    if writing.fix is not None:
        _check_fix(logs, writing.fix)
    settings = _settings(reading.tokenizer)
    result = _linted(logs, reading, settings, judging.paid())
    outcome = None
    if writing.fix is not None:
        outcome = _fixed(logs, writing.fix, reading, settings, result)
    return _conclude(result, threshold, outcome, writing, _paths(logs))


def _check_fix(logs: Sequence[str], out: Path) -> None:
    """Refuses before anything is read what would fail when all is read."""
    for log in logs:
        if log == "-" or (Path(log).exists() and not Path(log).is_file()):
            raise ArgumentError(f"{log}: --fix reads a log twice, so that it has to be a file")
    check_output(out)


def _settings(path: Path | None) -> Settings:
    from keepwarm.layout.lint import Settings
    from keepwarm.layout.rendering import RenderSettings

    if path is None:
        return Settings()
    from keepwarm.layout.chat_template import ChatTemplate
    from keepwarm.layout.tokens import LocalTokens

    tokens = LocalTokens(path)
    template = ChatTemplate.from_folder(path if path.is_dir() else path.parent)
    return Settings(rendering=RenderSettings(template=template), tokens=tokens)


def _linted(logs: Sequence[str], reading: Reading, settings: Settings, paid: Prices) -> LintResult:
    from keepwarm.cli.workload.options import reading as bar
    from keepwarm.layout.breakpoints import BreakpointAudit
    from keepwarm.layout.lint import Lint
    from keepwarm.layout.report import conclude

    running = Lint(settings)
    audit = BreakpointAudit(paid, count=lambda text: len(settings.tokens.encode(text)[0]))
    source = reading.open(logs)
    with bar("reading") as progress:
        for request in source.read(progress):
            running.add(request)
            if reading.target != "engine":
                audit.see(request)
    report = running.report()
    if report.requests_refused and not report.requests:
        raise ArgumentError(
            f"the chat template refused all {report.requests_refused} requests, as "
            f"{report.refused[0]}: name the folder of the model that they were sent to"
        )
    return conclude(
        report,
        audit.findings(),
        paid,
        files=[str(each) for each in logs],
        skipped=source.skipped().counts,
        is_exact=settings.tokens.is_exact,
        are_providers=None if reading.target is None else reading.target != "engine",
    )


def _fixed(
    logs: Sequence[str], out: Path, reading: Reading, settings: Settings, before: LintResult
) -> FixOutcome:
    from keepwarm.layout.fix import Rules, Target
    from keepwarm.layout.lint import Lint
    from keepwarm.layout.providers import target_of
    from keepwarm.layout.report import FixOutcome
    from keepwarm.workload.readers.request_log import Fields
    from keepwarm.workload.readers.trace_of import opened
    from keepwarm.workload.repaired import repair_log

    form = reading.open(logs).format
    if form != "requests":
        raise ArgumentError(f"--fix repairs logs of requests in JSON lines, not the form {form}")
    fields = Fields(reading.session_field or "", reading.tenant_field or "")
    own = None if reading.target is None else Target(reading.target)
    done = repair_log(
        opened(list(logs)), out, lambda each: Rules(target=own or target_of(each)), fields
    )
    again = Lint(settings)
    for request in reading.open([str(out)]):
        again.add(request)
    return FixOutcome(
        file=str(out),
        records=done.records,
        changed=done.changed,
        changes=done.changes,
        left=done.left,
        repeated_before=before.report.actual_reuse,
        repeated_after=again.report().actual_reuse,
    )


def _template_result(folder: Path) -> LintResult:
    from keepwarm.layout.chat_template import ChatTemplate
    from keepwarm.layout.lint import Lint
    from keepwarm.layout.report import LintResult
    from keepwarm.layout.template_check import check_template

    own = folder if folder.is_file() else folder / "chat_template.jinja"
    file = own if own.is_file() else folder / "tokenizer_config.json"
    found = check_template(ChatTemplate.from_folder(folder), str(file), has_lines=own.is_file())
    return LintResult(
        files=[str(file)],
        skipped={},
        report=Lint().report(),
        findings=found,
        currency="USD",
        price_sources=(),
        models_without_price=(),
        is_exact=True,
    )


def _paths(logs: Sequence[str]) -> dict[str, str]:
    """Files by the names that places call them by."""
    return {Path(each).name: each for each in logs} | {each: each for each in logs}


def _conclude(
    result: LintResult,
    threshold: Threshold,
    outcome: FixOutcome | None,
    writing: Writing,
    paths: dict[str, str],
) -> int:
    document = result.as_json(threshold, outcome)
    sarif = writing.sarif
    if sarif is not None:
        text = json.dumps(_sarif(result.findings, document, paths), indent=1)
        if sarif == "-":
            write_result(text)
        else:
            _to_file(Path(sarif), text)
    if writing.json:
        write_result(json.dumps(document, indent=2))
    elif sarif != "-":
        from keepwarm.cli.lint_show import show

        show(result, outcome, document["threshold"])
    return FAILED if document["failed"] else 0


def _sarif(
    findings: Sequence[Finding], document: dict[str, Any], paths: dict[str, str]
) -> dict[str, Any]:
    import keepwarm
    from keepwarm.layout.sarif import sarif

    figures = {key: document[key] for key in ("log", "tokens", "money")}
    return sarif(findings, keepwarm.__version__, paths, figures)


def _to_file(path: Path, text: str) -> None:
    try:
        write_whole(path, f"{text}\n")
    except OSError as error:
        raise ArgumentError(f"{path}: cannot be written: {error.strerror}") from None
