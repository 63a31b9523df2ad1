"""Charts as SVG that stands in the page itself: no script, colours from the page's variables.

So a chart follows light and dark, prints, and opens from disk. Each point names its values to a
pointer that rests on it; the page shows the same numbers as a table below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from keepwarm.workload.report.scales import (
    Scale,
    byte_ticks,
    enclosing,
    even_ticks,
    log_ticks,
    percent,
    short,
    size,
)

WIDTH, HEIGHT = 760, 320
LEFT, RIGHT, TOP, BOTTOM = 62, 18, 14, 46
#: Colours that the page defines, for as many series; a chart never has more.
SERIES_MAX = 6


@dataclass(frozen=True, slots=True)
class Series:
    """One line: `ys` over `xs`, and the band that each value is within."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line with a word: a target, a break-even."""

    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis shows."""

    label: str
    is_log: bool = False
    is_share: bool = False
    is_bytes: bool = False

    def write(self, value: float) -> str:
        """A value as this axis writes it."""
        if self.is_bytes:
            return size(value)
        return percent(value) if self.is_share else short(value)


def lines(
    title: str, x: Axis, y: Axis, series: Sequence[Series], marks: Sequence[Mark] = ()
) -> str:
    """A line chart. Empty series are left out; on a logarithmic axis so are values <= 0."""
    series = [_positive(each) if x.is_log else each for each in series[:SERIES_MAX]]
    series = [each for each in series if each.xs]
    xs = [value for each in series for value in each.xs] + [mark.x for mark in marks]
    ys = [v for each in series for v in (*each.ys, *(each.high or ()))]
    if not series:
        return _frame(title, ['<text class="tick" x="80" y="80">no data</text>'], [])
    low, high = enclosing(xs, from_zero=not x.is_log)
    across = Scale(low, high, LEFT, WIDTH - RIGHT, x.is_log)
    low, high = _shares(ys) if y.is_share else enclosing(ys, from_zero=True)
    up = Scale(low, high, HEIGHT - BOTTOM, TOP)
    drawn = _axes(x, y, across, up)
    for number, each in enumerate(series, 1):
        drawn += _line(number, each, x, y, across, up)
    drawn += [_mark(mark, across) for mark in marks]
    return _frame(title, drawn, [each.name for each in series])


def bars(
    title: str,
    y: Axis,
    groups: Sequence[str],
    stacks: Sequence[tuple[str, Sequence[float]]],
    ticks: Sequence[str] | None = None,
) -> str:
    """Stacked bars: one bar a group, one colour for each stack's name; `ticks` stand below."""
    stacks = stacks[:SERIES_MAX]
    if not groups or not stacks:
        return _frame(title, ['<text class="tick" x="80" y="80">no data</text>'], [])
    sums = [sum(values[at] for _, values in stacks) for at in range(len(groups))]
    low, high = _shares(sums) if y.is_share else enclosing(sums, from_zero=True)
    up = Scale(low, high, HEIGHT - BOTTOM, TOP)
    step = (WIDTH - LEFT - RIGHT) / len(groups)
    drawn = _grid(y, up)
    every = -(-len(groups) // 10)  # as many names as fit
    for at, group in enumerate(groups):
        left, base = LEFT + at * step + step * 0.1, 0.0
        for number, (name, values) in enumerate(stacks, 1):
            top, bottom = up.at(base + values[at]), up.at(base)
            base += values[at]
            tip = escape(f"{group}, {name}: {y.write(values[at])}")
            drawn.append(
                f'<rect class="b{number}" x="{left:.1f}" y="{top:.1f}" width="{step * 0.8:.1f}" '
                f'height="{max(bottom - top, 0):.1f}"><title>{tip}</title></rect>'
            )
        if at % every == 0:
            drawn.append(_tick_x(left + step * 0.4, ticks[at] if ticks else group))
    names = [name for name, _ in stacks]
    return _frame(title, drawn, names if len(names) > 1 else [])


def _shares(values: Sequence[float]) -> tuple[float, float]:
    """From nothing to the next of a few round shares."""
    most = max(values, default=1.0)
    return 0.0, next((top for top in (0.1, 0.2, 0.5) if most <= top), 1.0)


def _positive(series: Series) -> Series:
    kept = [at for at, value in enumerate(series.xs) if value > 0]

    def only(values: Sequence[float]) -> list[float]:
        return [values[at] for at in kept]

    low = None if series.low is None else only(series.low)
    high = None if series.high is None else only(series.high)
    return Series(series.name, only(series.xs), only(series.ys), low, high)


def _line(number: int, series: Series, x: Axis, y: Axis, across: Scale, up: Scale) -> list[str]:
    points = [(across.at(a), up.at(b)) for a, b in zip(series.xs, series.ys, strict=True)]
    drawn = []
    if series.low is not None and series.high is not None:
        over = [
            f"{across.at(a):.1f},{up.at(b):.1f}"
            for a, b in zip(series.xs, series.high, strict=True)
        ]
        under = [
            f"{across.at(a):.1f},{up.at(b):.1f}" for a, b in zip(series.xs, series.low, strict=True)
        ]
        drawn.append(f'<polygon class="band{number}" points="{" ".join(over + under[::-1])}"/>')
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    drawn.append(f'<polyline class="l{number}" points="{path}"/>')
    for at, (left, top) in enumerate(points):
        tip = f"{series.name}: {y.write(series.ys[at])} at {x.write(series.xs[at])}"
        if series.low is not None and series.high is not None:
            tip += f" ({y.write(series.low[at])} to {y.write(series.high[at])})"
        drawn.append(
            f'<circle class="p{number}" cx="{left:.1f}" cy="{top:.1f}" r="3">'
            f"<title>{escape(tip)}</title></circle>"
        )
    return drawn


def _mark(mark: Mark, across: Scale) -> str:
    at = across.at(mark.x)
    anchor, text = ("end", at - 5) if at > WIDTH * 0.7 else ("start", at + 5)
    return (
        f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<text class="marked" x="{text:.1f}" y="{TOP + 10}" text-anchor="{anchor}">'
        f"{escape(mark.label)}</text>"
    )


def _axes(x: Axis, y: Axis, across: Scale, up: Scale) -> list[str]:
    ticks: Callable[[float, float], list[float]] = even_ticks
    if x.is_log:
        ticks = byte_ticks if x.is_bytes else log_ticks
    drawn = _grid(y, up)
    drawn += [_tick_x(across.at(value), x.write(value)) for value in ticks(across.low, across.high)]
    middle = (LEFT + WIDTH - RIGHT) / 2
    drawn.append(
        f'<text class="name" x="{middle:.0f}" y="{HEIGHT - 8}" text-anchor="middle">'
        f"{escape(x.label)}</text>"
    )
    return drawn


def _grid(y: Axis, up: Scale) -> list[str]:
    drawn = []
    for value in even_ticks(up.low, up.high):
        at = up.at(value)
        drawn.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text class="tick" x="{LEFT - 7}" y="{at + 4:.1f}" text-anchor="end">'
            f"{escape(y.write(value))}</text>"
        )
    middle = (TOP + HEIGHT - BOTTOM) / 2
    drawn.append(
        f'<text class="name" transform="translate(14 {middle:.0f}) rotate(-90)" '
        f'text-anchor="middle">{escape(y.label)}</text>'
    )
    return drawn


def _tick_x(at: float, text: str) -> str:
    # Centred below its place, as far as it fits: a digit is about 7 wide.
    at = min(at, WIDTH - 3.5 * len(text) - 1)
    return (
        f'<text class="tick" x="{at:.1f}" y="{HEIGHT - BOTTOM + 21}" text-anchor="middle">'
        f"{escape(text)}</text>"
    )


def _frame(title: str, drawn: Sequence[str], names: Sequence[str]) -> str:
    legend = "".join(
        f'<li><span class="swatch s{number}"></span>{escape(name)}</li>'
        for number, name in enumerate(names, 1)
    )
    head = f'<ul class="legend">{legend}</ul>' if legend else ""
    body = "\n".join(drawn)
    return (
        f"{head}\n"
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">\n{body}\n</svg>'
    )
