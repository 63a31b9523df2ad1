"""The page's three pictures, as SVG whose colours are the page's variables."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from keepwarm.demo.vllm.run import TOLD, Kind, Record
from keepwarm.demo.vllm.summary import Summary

WIDTH = 860
SHORT = {
    Kind.COLD: "cold",
    Kind.SAME_REPLICA: "same replica",
    Kind.OTHER_REPLICA: "other replica",
    Kind.AFTER_RESTART: "after restart",
    Kind.NODE_DOWN: "node killed",
}
LINE = 'stroke="var(--line)"'


def _figure(height: int, label: str, parts: Iterator[str]) -> str:
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">'
        + "".join(parts)
        + "</svg></figure>"
    )


def _text(x: float, y: float, said: str, anchor: str = "start", soft: bool = False) -> str:
    kind = ' class="soft"' if soft else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{escape(said)}</text>'


def bars(summary: Summary) -> str:
    """A bar to the median, a line to the longest."""
    most = max((found["p99"] for found in summary.ttft_ms.values()), default=0.0) or 1.0
    left, step = 110, 30
    wide = WIDTH - left - 90

    def parts() -> Iterator[str]:
        for at, kind in enumerate(TOLD):
            found, y = summary.ttft_ms[kind], 8 + at * step
            bar, end = wide * found["p50"] / most, wide * found["p99"] / most
            yield _text(left - 8, y + 14, SHORT[kind], "end")
            yield (
                f'<rect x="{left}" y="{y}" width="{max(bar, 1):.1f}" height="20" rx="2" '
                f'fill="var(--{kind})"/>'
                f'<line x1="{left + bar:.1f}" x2="{left + end:.1f}" y1="{y + 10}" y2="{y + 10}" '
                f'stroke="var(--{kind})" stroke-width="2"/>'
                f'<line x1="{left + end:.1f}" x2="{left + end:.1f}" y1="{y + 4}" y2="{y + 16}" '
                f'stroke="var(--{kind})" stroke-width="2"/>'
            )
            yield _text(left + end + 8, y + 14, f"{found['p50']:,.0f} ms")
        foot = "bar: P50, line: P99, milliseconds to the first token"
        yield _text(left, 8 + len(TOLD) * step + 14, foot, soft=True)

    return _figure(8 + len(TOLD) * step + 22, "time to first token by kind", parts())


def lengths(record: Record) -> str:
    """Every request: its length across, its time to the first token up."""
    asked = record.of(*TOLD)
    most_tokens = max((each.prompt_tokens for each in asked), default=1)
    most_s = max((each.completion.first_token_s for each in asked), default=0.0) or 1.0
    left, right, top, foot, height = 56, 130, 12, 40, 300
    wide, tall = WIDTH - left - right, height - top - foot

    def x(tokens: int) -> float:
        return left + wide * tokens / most_tokens

    def y(seconds: float) -> float:
        return top + tall * (1 - seconds / most_s)

    def parts() -> Iterator[str]:
        for share in (0.0, 0.5, 1.0):
            at = y(most_s * share)
            yield f'<line x1="{left}" x2="{WIDTH - right}" y1="{at:.1f}" y2="{at:.1f}" {LINE}/>'
            yield _text(left - 6, at + 4, f"{most_s * share:.1f} s", "end", soft=True)
            tokens = round(most_tokens * share)
            yield _text(x(tokens), height - foot + 18, f"{tokens:,}", "middle", soft=True)
        yield _text(left + wide / 2, height - 6, "prompt tokens", "middle", soft=True)
        for kind in TOLD:
            found = sorted((e.prompt_tokens, e.completion.first_token_s) for e in record.of(kind))
            points = " ".join(f"{x(tokens):.1f},{y(s):.1f}" for tokens, s in found)
            colour = f"var(--{kind})"
            yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
            for tokens, s in found:
                yield f'<circle cx="{x(tokens):.1f}" cy="{y(s):.1f}" r="3" fill="{colour}"/>'
        yield from _legend([(f"var(--{k})", SHORT[k]) for k in TOLD], WIDTH - right + 16, top + 8)

    return _figure(height, "time to first token by prompt length", parts())


def _legend(entries: list[tuple[str, str]], x: float, y: float) -> Iterator[str]:
    for at, (colour, said) in enumerate(entries):
        yield f'<rect x="{x}" y="{y + 20 * at - 9}" width="12" height="10" fill="{colour}"/>'
        yield _text(x + 18, y + 20 * at, said)


def turns(record: Record) -> str:
    """Each turn of the growing conversation: what was there, what was brought, what was new."""
    asked = record.of(Kind.TURN)
    most = max((each.prompt_tokens for each in asked), default=1)
    left, right, step = 70, 130, 28
    wide = WIDTH - left - right - 70

    def parts() -> Iterator[str]:
        for at, each in enumerate(asked):
            y, start = 6 + at * step, float(left)
            yield _text(left - 8, y + 14, f"{at + 1} at {each.replica}", "end")
            for name, tokens in (
                ("device", each.accounts.device + each.accounts.host),
                ("restored", each.accounts.restored.total()),
                ("computed", each.accounts.recomputed.total()),
            ):
                length = wide * tokens / most
                yield (
                    f'<rect x="{start:.1f}" y="{y}" width="{length:.1f}" height="18" '
                    f'fill="var(--{name})"/>'
                )
                start += length
            yield _text(start + 8, y + 14, f"{each.completion.first_token_s * 1e3:,.0f} ms")
        entries = [("own cache", "device"), ("restored", "restored"), ("computed", "computed")]
        marks = [(f"var(--{colour})", said) for said, colour in entries]
        yield from _legend(marks, WIDTH - right + 16, 18)

    return _figure(max(6 + len(asked) * step + 6, 76), "tokens of each turn by source", parts())
