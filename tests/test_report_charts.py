"""Charts draw what they are given: points where their values are, names without markup."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ElementTree

import pytest
from keepwarm.workload.report.charts import Axis, Mark, Series, bars, lines
from keepwarm.workload.report.scales import (
    Scale,
    byte_ticks,
    enclosing,
    even_ticks,
    log_ticks,
    short,
    size,
)

SHARE = Axis("hit rate", is_share=True)


def drawn(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{svg}</div>")


def points(svg: str, number: int = 1) -> list[tuple[float, float]]:
    circles = drawn(svg).iter("circle")
    return [
        (float(each.attrib["cx"]), float(each.attrib["cy"]))
        for each in circles
        if each.attrib["class"] == f"p{number}"
    ]


def test_ticks_are_round_few_and_inside() -> None:
    picks = random.Random(7)
    for _ in range(500):
        low = picks.uniform(-1e6, 1e6) * 10 ** picks.randint(-8, 3)
        high = low + abs(picks.gauss(0, 1)) * 10 ** picks.randint(-6, 9) + 1e-9
        ticks = even_ticks(low, high)
        assert 1 <= len(ticks) <= 6, (low, high, ticks)
        slack = (high - low) * 1e-6 + 1e-9
        assert all(low - slack <= tick <= high + slack for tick in ticks) or ticks == [low]
        low, high = sorted(10 ** picks.uniform(-3, 12) for _ in range(2))
        ticks = log_ticks(low, high)
        assert 1 <= len(ticks) <= 7, (low, high, ticks)
        assert ticks == sorted(set(ticks))
        low, high = sorted(2 ** picks.uniform(0, 60) for _ in range(2))
        ticks = byte_ticks(low, high)
        assert 1 <= len(ticks) <= 7, (low, high, ticks)
        assert ticks == sorted(set(ticks))
        assert all(low * 0.999 <= tick <= high * 1.001 for tick in ticks)


def test_a_scale_keeps_order_and_ends() -> None:
    for is_log in (False, True):
        scale = Scale(1, 1000, 10, 110, is_log)
        assert [scale.at(1), scale.at(1000)] == pytest.approx([10, 110])
        assert scale.at(0.1) == 10
        assert scale.at(1e9) == pytest.approx(110)
        places = [scale.at(value) for value in (1, 2, 10, 500, 1000)]
        assert places == sorted(places)
    assert Scale(1, 1000, 0, 3, is_log=True).at(10) == pytest.approx(1)


def test_ranges_are_never_empty() -> None:
    assert enclosing([], from_zero=True) == (0.0, 1.0)
    assert enclosing([5.0], from_zero=True) == (0.0, 5.0)
    assert enclosing([0.0], from_zero=True) == (0.0, 1.0)
    assert enclosing([float("nan"), 3.0], from_zero=False) == (3.0, 6.0)


def test_numbers_are_short() -> None:
    assert [short(value) for value in (0, 999, 1000, 1.5e6, 2e9, 0.25)] == [
        *("0", "999", "1k", "1.5M", "2G", "0.25"),
    ]


def test_sizes_are_short() -> None:
    shown = [size(value) for value in (0, 1023, 1024, 3 << 29, 1 << 40, 1 << 50)]
    assert shown == ["0 B", "1.02e+03 B", "1 KiB", "1.5 GiB", "1 TiB", "1 PiB"]


def test_a_line_goes_through_its_points() -> None:
    svg = lines(
        "a", Axis("blocks", is_log=True), SHARE, [Series("lru", [10, 100, 1000], [0, 0.5, 1])]
    )
    (x0, y0), (x1, y1), (x2, y2) = points(svg)
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)  # even by logarithm
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)
    assert y2 < y0
    tips = [each.text for each in drawn(svg).iter("title")]
    assert tips == ["lru: 0 % at 10", "lru: 50 % at 100", "lru: 100 % at 1k"]


def test_a_band_is_around_its_line() -> None:
    series = Series("lru", [1, 2], [0.2, 0.3], [0.1, 0.2], [0.3, 0.4])
    svg = lines("a", Axis("blocks"), SHARE, [series], [Mark(1.5, "target")])
    (polygon,) = drawn(svg).iter("polygon")
    corners = [float(pair.split(",")[1]) for pair in polygon.attrib["points"].split()]
    for (_, y), high, low in zip(points(svg), corners[:2], corners[:1:-1], strict=True):
        assert high < y < low
    assert "target" in svg
    assert "lru: 20 % at 1 (10 % to 30 %)" in svg


def test_a_logarithmic_axis_leaves_out_zero() -> None:
    svg = lines("a", Axis("blocks", is_log=True), SHARE, [Series("lru", [0, 10], [0.1, 0.2])])
    assert len(points(svg)) == 1


def test_bars_are_as_high_as_their_values() -> None:
    stacks = [("old", [0.1, 0.4]), ("new", [0.2, 0.1])]
    svg = bars("a", SHARE, ["x", "y"], stacks)
    heights = {
        (each.attrib["class"], at): float(each.attrib["height"])
        for at, each in enumerate(drawn(svg).iter("rect"))
    }
    (old_x, new_x, old_y, new_y) = heights.values()
    assert new_x == pytest.approx(2 * old_x, abs=0.2)
    assert old_y == pytest.approx(4 * old_x, abs=0.3)
    assert new_y == pytest.approx(old_x, abs=0.2)


def test_names_are_no_markup_and_nothing_is_drawn_of_nothing() -> None:
    evil = '<script>alert(1)</script>&"'
    for svg in (
        lines(evil, Axis(evil), Axis(evil), [Series(evil, [1], [1])], [Mark(1, evil)]),
        bars(evil, Axis(evil), [evil], [(evil, [1]), (evil, [2])]),
        lines("a", Axis("x"), Axis("y"), []),
        bars("a", Axis("y"), [], []),
    ):
        assert "<script" not in svg
        drawn(svg)
