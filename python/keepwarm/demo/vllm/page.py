"""The result as one HTML page: no script, nothing loaded, light and dark, and it prints.

Colours are CSS variables, and the drawings (drawing.py) name them, so that one picture serves both.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from keepwarm.demo.vllm import drawing
from keepwarm.demo.vllm.report import TITLES
from keepwarm.demo.vllm.run import TOLD, Asked, Kind, Record
from keepwarm.demo.vllm.summary import Summary

STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #5b6673; --line: #d9dee4; --page: #fff;
  --cold: #8d99a6; --same_replica: #264653; --other_replica: #1f8a7d; --after_restart: #b7791f;
  --node_down: #c0392b; --device: #5b7fa6; --restored: #1f8a7d; --computed: #aab4be; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf0; --soft: #9aa7b4; --line: #38424d;
  --page: #14191f; --cold: #8593a1; --same_replica: #9ec1dd; --other_replica: #3fc1b0;
  --after_restart: #e0a84a; --node_down: #ef7063; --device: #7fa5cf; --restored: #3fc1b0;
  --computed: #5a6672; } }
@media print { :root { color-scheme: light; --ink: #000; --soft: #444; --line: #ccc; --page: #fff;
  --cold: #8d99a6; --same_replica: #264653; --other_replica: #1f8a7d; --after_restart: #b7791f;
  --node_down: #c0392b; --device: #5b7fa6; --restored: #1f8a7d; --computed: #aab4be; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  figure, table { break-inside: avoid; } details { display: none; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
  max-width: 880px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
p { margin: .4rem 0; } .soft { color: var(--soft); } .bad { color: var(--node_down); }
figure { margin: 0; } svg { width: 100%; height: auto; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; } svg .soft { fill: var(--soft); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
th { font-weight: 600; } code { font-size: .85em; overflow-wrap: anywhere; }
"""


def html(record: Record, summary: Summary, connector: str) -> str:
    """The page's source."""
    verdict = _verdict(summary)
    sections = [
        ("Time to first token", drawing.bars(summary) + _times(summary)),
        ("By the prompt's length", drawing.lengths(record)),
        (
            "One conversation that grows and bounces between the replicas",
            drawing.turns(record) + _turns(record),
        ),
        ("Where every prompt token came from", _tokens(summary)),
        ("How it was measured", _method(record, summary, connector)),
    ]
    body = "\n".join(f"<h2>{escape(title)}</h2>\n{text}" for title, text in sections)
    problems = "".join(f'<p class="bad">Does not hold: {escape(p)}</p>' for p in summary.problems)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(verdict)}</title><style>{STYLE}</style></head><body>\n"
        f"<h1>{escape(verdict)}</h1>\n{problems}\n{body}\n</body></html>\n"
    )


def _verdict(summary: Summary) -> str:
    other, restart = (summary.ratio(k) for k in (Kind.OTHER_REPLICA, Kind.AFTER_RESTART))
    answers = "identical answers" if summary.identical else "answers that DIFFER"
    if not summary.won:
        return f"Restoring did not win here, {answers}"
    return (
        f"Another replica needs {other:.0%} of the cold time to its first token, a restarted one "
        f"{restart:.0%}, with {answers}"
    )


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(each)}</td>" for each in row) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _times(summary: Summary) -> str:
    rows = []
    for kind in TOLD:
        found = summary.ttft_ms[kind]
        share = f"{summary.ratio(kind):.2f}"
        count = f"{len(summary.of_cold[kind])}"
        rows.append((TITLES[kind], count, f"{found['p50']:,.0f}", f"{found['p99']:,.0f}", share))
    return _table(("", "requests", "P50 ms", "P99 ms", "of cold"), rows)


def _turn(number: int, each: Asked) -> tuple[str, ...]:
    accounts = each.accounts
    counts = (accounts.restored.total(), accounts.device, accounts.recomputed.total())
    first = f"{each.completion.first_token_s * 1e3:,.0f}"
    told = (f"{count:,}" for count in (each.prompt_tokens, *counts))
    return (f"{number}", each.replica, *told, first)


def _turns(record: Record) -> str:
    rows = [_turn(at, each) for at, each in enumerate(record.of(Kind.TURN), 1)]
    columns = ("turn", "replica", "tokens", "restored", "device", "computed", "TTFT ms")
    return _table(columns, rows)


def _tokens(summary: Summary) -> str:
    accounts = summary.accounts
    rows = [("the engine's own cache", accounts.device), ("the engine's host pool", accounts.host)]
    rows += [(f"restored from {tier}", count) for tier, count in accounts.restored.items()]
    rows += [(f"computed: {why}", count) for why, count in accounts.recomputed.most_common()]
    told = [
        (name, f"{count:,}", f"{count / accounts.prompt:.1%}" if accounts.prompt else "")
        for name, count in [*rows, ("in all", accounts.prompt)]
    ]
    return _table(("", "tokens", "share"), told)


def _method(record: Record, summary: Summary, connector: str) -> str:
    about, machine = record.about, record.machine
    answers = "identical" if summary.identical else f"{len(summary.differing)} differ"
    paragraphs = (
        f"Two vLLM {about.get('engine', '')} replicas on {machine.get('cores', '?')} processor "
        f"cores (load {machine.get('load_1m', 0.0):.1f}), {about.get('model', 'a model')} in "
        f"float32, the {connector} connector, one Keepwarm node. One request at a time; the time "
        "runs from before the connection is made to the first token that arrives.",
        f"{summary.compared} answers of {record.sizes.answer_tokens} tokens at temperature 0 were "
        "compared, token by token, with what the same prompt gets from the engine's own prefix "
        f"cache: {answers}. Before another replica is asked, the node has what the first stored.",
        "Cold and node-killed prompts are conversations that no replica has seen, of the same "
        "lengths as the others. With few samples the P99 is the longest. Of cold: each request's "
        "time against the cold one of its own conversation, the median of these.",
    )
    text = "".join(f"<p>{escape(each)}</p>" for each in paragraphs)
    commands = "".join(
        f"<p><code>{escape(str(about[name]))}</code></p>"
        for name in ("node_command", "replica_command")
        if name in about
    )
    return f"{text}<details><summary>Commands</summary>{commands}</details>"
