"""The report: what it says is what the commands beside its figures say; a real browser shows it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from keepwarm.cli import main

MODEL = ("--model", "Llama-3.1-8B", "--gpu", "l4")
#: Standing in the page, this would be markup.
EVIL = "<img src=x onerror=alert(1)>"


def synthetic(folder: Path, kind: str, requests: int) -> Path:
    path = folder / f"{kind}.jsonl"
    code = main(["workload", "synth", str(path), "--kind", kind, "--requests", str(requests)])
    assert code == 0
    return path


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic(tmp_path_factory.mktemp("traces"), "agents", 600)


@pytest.fixture(scope="module")
def made(agents: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """The page and the JSON."""
    out = tmp_path_factory.mktemp("report") / "page.html"
    lint = out.with_name("lint.json")
    finding = {
        "breaker": "tool-order",
        "requests": 3,
        "lost_tokens": 1200,
        "explanation": EVIL,
        "repair": "sort them",
        "expected": False,
    }
    lint.write_text(json.dumps({"kind": "keepwarm.lint", "schema": 1, "findings": [finding]}))
    arguments = [
        str(agents),
        *MODEL,
        "--out",
        str(out),
        "--from",
        str(lint),
        "--replica-cache",
        "2GiB",
        "--replicas",
        "3",
    ]
    assert main(["workload", "report", *arguments]) == 0
    return out.read_text(), json.loads(out.with_suffix(".json").read_text())


def figures(made: tuple[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["key"]: each for each in made[1]["scorecard"]}


def run_json(command: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    words = shlex.split(command)
    assert words[0] == "keepwarm"
    capsys.readouterr()
    assert main([*words[1:], "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_headline_has_the_reason_the_money_and_what_would_change_it(
    made: tuple[str, dict[str, Any]],
) -> None:
    page, document = made
    headline = page.partition('<section class="headline')[2].partition("</section>")[0]
    found = document["describe"]["verdict"]
    for said in (found["reason"][1:], document["size"]["reason"], *found["would_change"]):
        assert escape(said) in headline
    assert "TTFT P50, with a shared memory, simulated" in headline


def test_every_figure_has_a_definition_and_a_command(made: tuple[str, dict[str, Any]]) -> None:
    found = figures(made)
    assert len(found) == len(made[1]["scorecard"]), "keys are unique"
    for key, figure in found.items():
        assert figure["definition"], key
        is_missing = figure["value"] is None
        assert is_missing == (figure["basis"] == "missing"), key
        assert figure["command"].startswith("needs " if is_missing else "keepwarm "), key


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("hit_rate_prefix", ("measures", "reuse_by_prefix", "tokens", "value")),
        ("hit_rate_block", ("measures", "reuse_by_block", "blocks", "value")),
        ("hit_rate_sticky", ("measures", "reuse_sticky", "tokens", "value")),
        ("long_prefix_requests", ("measures", "long_prefix_requests", "value")),
        ("context_tokens_p99", ("measures", "input_length", "p99")),
        ("session_kv_bytes_p50", ("kv", "session_bytes", "p50")),
        ("ttft_p50_without", ("ttft_s", "p50")),
        ("ttft_p99_with", ("ttft_s", "p99")),
    ],
)
def test_the_command_makes_the_figure(
    key: str,
    path: tuple[str, ...],
    made: tuple[str, dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    figure = figures(made)[key]
    found: Any = run_json(figure["command"], capsys)
    for name in path:
        found = found[name]
    assert found == pytest.approx(figure["value"], rel=1e-12), figure["command"]


def test_a_shared_memory_finds_more_and_answers_sooner(made: tuple[str, dict[str, Any]]) -> None:
    fleets = made[1]["fleets"]
    hits = [fleets[kind]["hit_rate"]["token"] for kind in ("alone", "local", "shared")]
    assert hits == sorted(hits)
    assert hits[2] > hits[0]
    found = figures(made)
    assert found["ttft_p50_with"]["value"] < found["ttft_p50_without"]["value"]
    assert 0 < found["device_eviction_rate"]["value"] < 1
    assert found["cross_replica_routing_rate"]["value"] == 0, "the router is sticky"


class Page(HTMLParser):
    """What a page would load, and whether each element is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert tag not in ("script", "iframe", "object"), tag
        assert not any(name.startswith("on") for name in given), tag
        self.loads += [value for name in ("src", "href") if (value := given.get(name))]
        if tag == "section" and (anchor := given.get("id")):
            self.anchors.add(anchor)


def test_the_page_loads_nothing_and_names_are_no_markup(made: tuple[str, dict[str, Any]]) -> None:
    page = Page()
    page.feed(made[0])
    inside = [load[1:] for load in page.loads if load.startswith("#")]
    assert set(inside) == page.anchors
    assert len(inside) == 7
    assert [load for load in page.loads if not load.startswith("#")] == ["data:,"]
    assert EVIL not in made[0]
    assert "&lt;img src=x" in made[0]
    assert not re.search(r"https?://(?!www\.w3\.org)", made[0])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no chromium here; make browser installs it")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        launched = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1100, 390])
def test_a_browser_shows_it(
    scheme: str, width: int, made: tuple[str, dict[str, Any]], browser: Any, tmp_path: Path
) -> None:
    (tmp_path / "page.html").write_text(made[0])
    context = browser.new_context(
        color_scheme=scheme, viewport={"width": width, "height": 900}, offline=True
    )
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("requestfailed", lambda request: said.append(request.url))
    page.goto((tmp_path / "page.html").as_uri())
    assert said == []
    assert page.title().startswith("What repeats in")
    ink, paper = (
        page.evaluate(f"getComputedStyle(document.body).{name}")
        for name in ("color", "backgroundColor")
    )
    assert (brightness(ink) > brightness(paper)) == (scheme == "dark")
    charts = page.locator("svg.chart")
    assert charts.count() >= 5
    for at in range(charts.count()):
        box = charts.nth(at).bounding_box()
        assert box is not None
        assert box["width"] > 250
        assert box["height"] > 100
    # Nothing is wider than the page: wide tables scroll by themselves.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    shot = tmp_path / f"{scheme}-{width}.png"
    page.screenshot(path=shot, full_page=True)
    assert shot.stat().st_size > 20_000
    context.close()


def test_text_of_charts_does_not_overlap(
    made: tuple[str, dict[str, Any]], browser: Any, tmp_path: Path
) -> None:
    (tmp_path / "page.html").write_text(made[0])
    page = browser.new_page(viewport={"width": 1100, "height": 900})
    page.goto((tmp_path / "page.html").as_uri())
    overlaps = page.evaluate(
        """() => [...document.querySelectorAll('svg.chart')].flatMap((svg, at) => {
            const boxes = [...svg.querySelectorAll('text')].map(
                (text) => [text.textContent, text.getBoundingClientRect()]);
            const found = [];
            boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
                if (p.left < q.right && q.left < p.right && p.top < q.bottom && q.top < p.bottom)
                    found.push(`chart ${at}: ${a} / ${b}`);
            }));
            return found;
        })"""
    )
    assert overlaps == []
    page.close()


def test_it_prints(made: tuple[str, dict[str, Any]], browser: Any, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(made[0])
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    page.emulate_media(media="print", color_scheme="dark")
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert brightness(paper) == 255 * 3, "ink on white, whatever the screen has"
    pdf = page.pdf()
    assert pdf.startswith(b"%PDF")
    assert pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") < 20
    context.close()


def brightness(colour: str) -> int:
    return sum(int(part) for part in re.findall(r"\d+", colour)[:3])


def test_lengths_alone_make_a_report_too(tmp_path: Path) -> None:
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    lines += [f"2023-11-16 18:{at // 60:02}:{at % 60:02}.0,{300 + at % 90},20" for at in range(400)]
    log = tmp_path / "lengths.csv"
    log.write_text("\n".join(lines) + "\n")
    out = tmp_path / "report.html"
    assert main(["workload", "report", str(log), *MODEL, "--out", str(out)]) == 0
    page = out.read_text()
    assert "Verdict: do not deploy" in page
    assert "The trace has lengths only" in page
    assert json.loads(out.with_suffix(".json").read_text())["size"] is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "is no result that a report can show"),
        ("[1]", "is not a JSON object"),
        ("{", "is not one JSON object"),
        ("[" * 100_000, "is not one JSON object"),
    ],
)
def test_what_is_no_result_is_refused(
    text: str, said: str, agents: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = tmp_path / "given.json"
    given.write_text(text)
    out = tmp_path / "report.html"
    code = main(["workload", "report", str(agents), "--from", str(given), "--out", str(out)])
    assert code == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_a_page_that_cannot_be_written_is_one_line(
    agents: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "no-folder" / "report.html"
    assert main(["workload", "report", str(agents), "--out", str(out)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["workload", "report", str(agents), "--out", str(tmp_path / "x.json")]) == 2
    assert main(["workload", "report", "-"]) == 2
    assert main(["workload", "report", str(agents), "--memory", "0"]) == 2
