"""What the page says, section by section, from what was found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keepwarm.config import show_size
from keepwarm.workload.describe import Description
from keepwarm.workload.load import HitCurve
from keepwarm.workload.measures import Distribution
from keepwarm.workload.report.charts import Axis, Mark, Series, bars, lines
from keepwarm.workload.report.fleets import KINDS, Fleets
from keepwarm.workload.report.page import Picture, Section, Table
from keepwarm.workload.report.scales import percent, short
from keepwarm.workload.report.scorecard import Figure
from keepwarm.workload.size import Sizing
from keepwarm.workload.trace import TokensAre

SHARE = Axis("share", is_share=True)
#: Traces in which names are hashed already, once and for all.
KEYED_FORMATS = ("parquet", "keepwarm-jsonl")
_VARIED = {
    "gpu_hour": "price of a GPU hour",
    "dram_gib_month": "price of DRAM",
    "flash_gib_month": "price of flash",
    "node_month": "price of a node",
    "prefill": "rate of computing",
    "restore": "rate of restoring",
    "growth": "traffic",
}


def structure(found: Description) -> Section:
    """Lengths, reuse and sessions as pictures."""
    measures = found.measures
    parts: list[Picture | Table] = [
        _histogram("Prompt lengths, tokens", measures.input_length),
    ]
    sentences = [
        f"{measures.requests:,} requests in {_span(measures.span_s)} ask for "
        f"{measures.input_tokens:,} input tokens, in blocks of {measures.info.block_tokens}."
    ]
    if measures.reuse_distance_blocks.count:
        parts.append(
            _histogram(
                "How many other blocks were used between two uses of one: a memory that holds so "
                "many has it",
                measures.reuse_distance_blocks,
            )
        )
        parts.append(_histogram("Seconds between two uses of a block", measures.reuse_time_s))
    shape = measures.sessions
    if shape.requests.count:
        spreads = {
            "requests of a session": shape.requests,
            "tokens added by a request": shape.tokens_added,
            "seconds between requests": shape.gap_s,
            "tokens at the end": shape.tokens_at_end,
        }
        rows = [_quantiles(name, spread) for name, spread in spreads.items() if spread.count]
        parts.append(Table(("sessions", "mean", "P50", "P90", "P99"), rows))
        sentences.append(
            f"{shape.sessions.value:,.0f} sessions; {percent(shape.single_share.value)} of them "
            "are a single request."
        )
    return Section("What the traffic looks like", "structure", sentences, parts)


def curve(found: HitCurve | None, block_bytes: float | None) -> Section:
    """Hit rate against capacity, in bytes where a model says how many a block has."""
    title, anchor = "What a memory of each size finds", "curve"
    if found is None:
        return Section(title, anchor, ["The trace has no blocks: there is no curve to draw."])
    unit = 1.0 if block_bytes is None else block_bytes
    sizes = [blocks * unit for blocks in found.blocks]
    axis = Axis("capacity, blocks", is_log=True)
    if block_bytes is not None:
        axis = Axis("capacity", is_log=True, is_bytes=True)
    rates = found.rates
    series = Series(
        "tokens found",
        sizes,
        [rate.value for rate in rates],
        [max(rate.value - rate.error, 0.0) for rate in rates],
        [min(rate.value + rate.error, 1.0) for rate in rates],
    )
    numbers = [
        (axis.write(size), percent(rate.value), percent(rate.error))
        for size, rate in zip(sizes, rates, strict=True)
    ]
    sentence = f"An unbounded memory finds {percent(found.ideal.value)} of the input tokens."
    picture = Picture(
        "Share of input tokens that a memory of each size finds (LRU); the band is the error of "
        "sampling",
        lines("hit rate by size", axis, Axis("hit rate by token", is_share=True), [series]),
        Table(("capacity", "hit rate", "±"), numbers),
    )
    return Section(title, anchor, [sentence], [picture])


def money(sizing: Sizing | None, currency: str, lacking: str) -> Section:
    """What each size leaves, where it breaks even, what that rests on."""
    title, anchor = "Whether it pays", "money"
    if sizing is None:
        return Section(title, anchor, [f"Money cannot be told; it needs {lacking}."])
    sizes = [plan.blocks * plan.block_bytes for plan in sizing.points]
    columns = [
        ("saved", [plan.saved.value for plan in sizing.points]),
        ("spent", [plan.spent.total() for plan in sizing.points]),
        ("left", [plan.net.value for plan in sizing.points]),
    ]
    marks = []
    if sizing.best.blocks:
        marks.append(Mark(sizing.best.blocks * sizing.best.block_bytes, "leaves most"))
    drawn = lines(
        "money by size",
        Axis("capacity", is_log=True, is_bytes=True),
        Axis(f"{currency} a month"),
        [Series(name, sizes, values) for name, values in columns],
        marks,
    )
    picture = Picture(
        f"{currency} a month by size, at the stated prices",
        drawn,
        Table(
            ("capacity", "saved", "spent", "left"),
            [
                (show_size(size), *(f"{values[at]:,.0f}" for _, values in columns))
                for at, size in enumerate(sizes)
            ],
        ),
    )
    return Section(
        title,
        anchor,
        [as_sentence(sizing.reason), *map(as_sentence, sizing.notes)],
        [picture, _sensitivity(sizing)],
    )


def fleet(found: Fleets | None, lacking: str) -> Section:
    """The same arrivals at engines alone, with local memories, and with a shared one."""
    title, anchor = "The same requests with and without", "fleet"
    if found is None:
        return Section(title, anchor, [f"Nothing was simulated; it needs {lacking}."])
    shape = found.shape
    documents = {kind: result.to_json() for kind, result in found.results.items()}
    names = [KINDS[kind] for kind in documents]
    tiers = ("device", "dram")
    stacks = [
        (
            {"device": "engines' own memory", "dram": "Keepwarm"}[tier],
            [
                document["hit_rate"]["by_tier"].get(tier, {}).get("token", 0.0)
                for document in documents.values()
            ],
        )
        for tier in tiers
    ]
    hits = bars(
        "where tokens came from", Axis("share of input tokens", is_share=True), names, stacks
    )
    rows = [
        (
            KINDS[kind],
            percent(document["hit_rate"]["token"]),
            *(f"{document['ttft_s'][name]:,.3f} s" for name in ("p50", "p90", "p99")),
            short(document["gpu_s"]["spent"] / 3600),
        )
        for kind, document in documents.items()
    ]
    head = ("fleet", "tokens found", "TTFT P50", "P90", "P99", "GPU hours of prefill")
    sentence = (
        f"Simulated: {found.replicas} replicas behind a {shape.router} router, each with "
        f"{show_size(shape.engine_bytes)} of KV memory of its own, and a memory of "
        f"{show_size(found.memory_bytes)}. Each request's prefix is restored only where that is "
        "faster than computing it. Answers (decode) are left out."
    )
    costs = found.results["shared"].costs
    assert costs is not None
    link = (
        f"Keepwarm is simulated in DRAM alone. The shared one's restores go one after the other at "
        f"{show_size(costs.restore['dram'].bytes_per_s)}/s, as if it were one node; of local ones "
        "each replica has a link of its own."
    )
    caption = "Input tokens by where they came from; the rest was computed"
    return Section(title, anchor, [sentence, link], [Picture(caption, hits), Table(head, rows)])


def lint(document: Mapping[str, Any] | None) -> Section:
    """What breaks prefixes, dearest first."""
    title, anchor = "What breaks prefixes", "lint"
    if document is None:
        sentence = (
            "Not looked at: run keepwarm lint on a log with text, and give its --json output with "
            "--from."
        )
        return Section(title, anchor, [sentence])
    all_of = document["findings"]
    findings = [each for each in all_of if not each["expected"]]
    findings.sort(key=lambda each: -each["lost_tokens"])
    rows = [
        (
            each["breaker"],
            f"{each['requests']:,}",
            f"{each['lost_tokens']:,}",
            each["explanation"],
            each["repair"],
        )
        for each in findings[:20]
    ]
    sentence = f"{len(findings)} causes that can be mended"
    sentence += f", of which the {len(rows)} dearest." if len(findings) > len(rows) else "."
    if expected := len(all_of) - len(findings):
        sentence += f" {expected} more are how the template or the provider works."
    head = ("cause", "requests", "tokens lost", "what happened", "repair")
    return Section(title, anchor, [sentence], [Table(head, rows, numbers_from=99)] if rows else [])


def scorecard(figures: Sequence[Figure]) -> Section:
    """Every figure with its definition and the command that made it."""
    rows = [
        (each.name, each.shown(), each.basis, f"{each.definition}\n{each.command}")
        for each in figures
    ]
    head = ("figure", "value", "basis", "definition, and the command that makes it")
    return Section(
        "Scorecard",
        "scorecard",
        [
            "Counted: every request was. Estimated: from a sample, ± half of a 99 % interval. "
            "Simulated: by a stated model. Measured: on live systems."
        ],
        [Table(head, rows, numbers_from=99)],
    )


def limits(
    found: Description,
    figures: Sequence[Figure],
    documents: Mapping[str, Mapping[str, Any]],
    has_model: bool,
) -> Section:
    """What the data does not show."""
    info, measures = found.measures.info, found.measures
    said = [*map(as_sentence, info.notes)]
    if info.synthetic:
        said.insert(0, "The trace is synthetic: nobody ever asked these requests.")
    if info.tokens_are is TokensAre.APPROXIMATE and not info.notes:
        said.append("Token counts are approximate: block borders are not the engine's.")
    if info.tokens_are is TokensAre.LENGTHS_ONLY:
        said.append("The trace has lengths only: whether anything repeats is not known.")
    if measures.span_s < 24 * 3600:
        said.append(
            f"It spans {_span(measures.span_s)}: nights, weekends and the growth of sessions over "
            "days are not in it."
        )
    if measures.sessions.requests_unknown:
        said.append(
            f"{measures.sessions.requests_unknown:,} requests name no session: what a sticky "
            "router would get is not known for them."
        )
    if measures.sharing_tenants.unknown.value == 1:
        said.append("No tenants are named: sharing across tenants cannot be told, nor ruled out.")
    if found.skipped:
        count = sum(found.skipped.values())
        said.append(f"{count:,} records were left out as malformed; they may be special ones.")
    if has_model:
        said.append(
            "Seconds and money are models: a GPU's peak times a share of it, restores at stated "
            "rates. A replay against your own engines measures them."
        )
    by_hash = any(
        each.basis == "simulated" and "--key-file" not in each.command for each in figures
    )
    if by_hash and info.format not in KEYED_FORMATS:
        said.append(
            "Names of sessions and blocks are hashed with a key of this run alone, so that routers "
            "that go by them spread requests otherwise in another run, and simulated figures "
            "differ a little: give --key-file for the same ones."
        )
    said += _doubts(info.name, documents)
    unmeasured = [each.name for each in figures if each.value is None]
    if unmeasured:
        said.append(f"Not measured here: {'; '.join(unmeasured)}.")
    return Section("What the data does not show", "limits", said)


def _doubts(trace: str, documents: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """What given results say against themselves, and whether they are of this trace."""
    for kind, document in documents.items():
        of_trace = document.get("trace")
        if isinstance(of_trace, dict) and of_trace.get("name") != trace:
            yield f"What was replayed ({kind}) is another trace: {of_trace.get('name')}."
        for problem in document.get("problems", ()):
            yield f"The replay ({kind}) is no evidence: {as_sentence(str(problem), begins=False)}"
        if document.get("interrupted"):
            yield f"The replay ({kind}) was interrupted."
        if document.get("quick"):
            yield "The bench was a quick one: a look, no figure to publish."


def as_sentence(text: str, *, begins: bool = True) -> str:
    """With a full stop, and with a capital letter where it begins a paragraph."""
    text = text[:1].upper() + text[1:] if begins else text
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _span(seconds: float) -> str:
    for unit, name in ((3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.1f} {name}"
    return f"{seconds:,.1f} seconds"


def _histogram(caption: str, spread: Distribution) -> Picture:
    groups = [f"{short(low)}-{short(high)}" for low, high, _ in spread.histogram]
    shares = [share for _, _, share in spread.histogram]
    ticks = [short(low) for low, _, _ in spread.histogram]
    svg = bars(caption, SHARE, groups, [("share", shares)], ticks)
    rows = [(group, percent(value)) for group, value in zip(groups, shares, strict=True)]
    return Picture(caption, svg, Table(("from - to", "share"), rows))


def _quantiles(name: str, spread: Distribution) -> tuple[str, ...]:
    values = (spread.mean, spread.p50, spread.p90, spread.p99)
    return (name, *(short(value) for value in values))


def _sensitivity(sizing: Sizing) -> Table:
    factors = sorted({each.factor for each in sizing.sensitivity})
    rows = []
    for what in dict.fromkeys(each.what for each in sizing.sensitivity):
        plans = {each.factor: each.plan for each in sizing.sensitivity if each.what == what}
        cells = (
            "none"
            if (plan := plans[factor]) is None
            else f"{show_size(plan.bytes())}, {plan.net.value:,.0f}"
            for factor in factors
        )
        rows.append((_VARIED.get(what, what), *cells))
    return Table(
        ("if this were times", *(f"{factor:g}" for factor in factors)),
        rows,
        caption="The size that leaves most and what it leaves a month, if one thing were otherwise",
    )
