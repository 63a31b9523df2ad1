"""The result as a picture: restored and recomputed tokens over time, the kill marked. Plain SVG."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from keepwarm.demo.run import Record
from keepwarm.demo.summary import Summary

WIDTH, HEIGHT = 860, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 64, 44
BARS = 48
RESTORED, RECOMPUTED, IDEAL, KILL = "#2a9d8f", "#d9d9d9", "#264653", "#d62828"


@dataclass(slots=True)
class Bar:
    """Tokens of the turns that ended in one slice of the run."""

    restored: int = 0
    asked: int = 0
    ideal: int = 0


def bars(record: Record, count: int = BARS) -> list[Bar]:
    """The run cut into equal slices of time."""
    made = [Bar() for _ in range(count)]
    span = max(record.ended - record.started, 1e-9)
    for served in record.served:
        share = (served.answer["ended"] - record.started) / span
        bar = made[min(max(int(share * count), 0), count - 1)]
        bar.asked += served.ledger.asked
        bar.restored += served.ledger.restored_tokens()
        bar.ideal += served.ideal_tokens
    return made


def svg(record: Record, summary: Summary) -> str:
    """The picture's source."""
    made = bars(record)
    most = max(max(bar.asked for bar in made), 1)
    inner_w, inner_h = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    span = max(record.ended - record.started, 1e-9)

    def x(at: float) -> float:
        return LEFT + inner_w * (at - record.started) / span

    def y(tokens: float) -> float:
        return TOP + inner_h * (1 - tokens / most)

    parts = [_head(record, summary), *_legend(), *_axis(most, span, y)]
    down = f'x="{x(record.killed):.1f}" y="{TOP}" height="{inner_h}"'
    parts.append(f'<rect {down} width="{x(record.ready) - x(record.killed):.1f}" fill="#fbe3e3"/>')
    step = inner_w / len(made)
    for at, bar in enumerate(made):
        left, wide = LEFT + at * step, step * 0.82
        for low, high, colour in (
            (0, bar.restored, RESTORED),
            (bar.restored, bar.asked, RECOMPUTED),
        ):
            if high > low:
                parts.append(
                    f'<rect x="{left:.1f}" y="{y(high):.1f}" width="{wide:.1f}" '
                    f'height="{y(low) - y(high):.1f}" fill="{colour}"/>'
                )
        if bar.asked:
            parts.append(
                f'<line x1="{left:.1f}" x2="{left + wide:.1f}" y1="{y(bar.ideal):.1f}" '
                f'y2="{y(bar.ideal):.1f}" stroke="{IDEAL}" stroke-width="2"/>'
            )
    parts += _kill(x(record.killed))
    return "\n".join([*parts, "</svg>", ""])


def _head(record: Record, summary: Summary) -> str:
    kind = "generated" if record.plan.trace.synthetic else "recorded"
    title = (
        f"{summary.hit_rate():.1%} of {summary.ledger.asked / 1e6:.1f} M tokens restored "
        f"(a memory without limits: {summary.ideal_rate():.1%})"
    )
    under = (
        f"{record.plan.trace.sessions()} {kind} coding-agent sessions on two replicas, memory "
        f"{record.plan.arena_bytes / record.plan.working_set_bytes:.0%} of the working set, "
        f"{summary.bytes_verified / 2**30:.1f} GiB verified, {summary.wrong_bytes} wrong bytes"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12" role="img" aria-label="{escape(title)}">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n'
        f'<text x="{LEFT}" y="22" font-size="15" font-weight="bold">{escape(title)}</text>\n'
        f'<text x="{LEFT}" y="40" fill="#555">{escape(under)}</text>'
    )


def _legend() -> list[str]:
    made, at = [], LEFT
    kinds = ((RESTORED, "restored"), (RECOMPUTED, "recomputed"), (IDEAL, "memory without limits"))
    for colour, text in kinds:
        tall, top = (3, 52) if colour == IDEAL else (9, 48)
        made.append(f'<rect x="{at}" y="{top}" width="14" height="{tall}" fill="{colour}"/>')
        made.append(f'<text x="{at + 19}" y="57" fill="#333">{text}</text>')
        at += 110
    return made


def _axis(most: int, span: float, y: object) -> list[str]:
    assert callable(y)
    made = []
    for share in (0.0, 0.5, 1.0):
        height = y(most * share)
        made.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}" '
            f'stroke="#eee"/><text x="{LEFT - 6}" y="{height + 4:.1f}" text-anchor="end" '
            f'fill="#555">{most * share / 1e3:,.0f}k</text>'
        )
    foot = HEIGHT - BOTTOM + 18
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        at = LEFT + (WIDTH - LEFT - RIGHT) * share
        anchor = "end" if share == 1.0 else "middle"
        made.append(
            f'<text x="{at:.0f}" y="{foot}" text-anchor="{anchor}" fill="#555">'
            f"{span * share:.0f} s</text>"
        )
    middle = (LEFT + WIDTH - RIGHT) // 2
    made.append(
        f'<text x="{middle}" y="{foot + 17}" text-anchor="middle" fill="#555">'
        "prompt tokens asked, by when the request was done</text>"
    )
    return made


def _kill(at: float) -> list[str]:
    return [
        f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP - 4}" y2="{HEIGHT - BOTTOM}" '
        f'stroke="{KILL}" stroke-width="2" stroke-dasharray="5 3"/>',
        f'<text x="{at + 5:.1f}" y="{TOP + 6}" fill="{KILL}" '
        'stroke="white" stroke-width="4" paint-order="stroke">kill -9 of the node</text>',
    ]
