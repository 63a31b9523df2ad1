"""One self-contained HTML page: no script, no font, no request to anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import resources


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text below a head; columns that hold numbers are set to the right.

    What stands behind a line end in a cell is a command.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers_from: int = 1
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart (SVG), the sentence that it shows, and the same numbers as a table."""

    caption: str
    svg: str
    numbers: Table | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page: sentences, then pictures and tables in the order given."""

    title: str
    anchor: str
    sentences: Sequence[str] = ()
    parts: Sequence[Picture | Table] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class Headline:
    """What a hurried reader sees: the verdict and a few figures."""

    verdict: str
    tone: str  # "good", "fair" or "poor"
    reason: str
    figures: Sequence[tuple[str, str]]  # value, what it is
    changes: Sequence[str]  # what would change it


def html(title: str, subtitle: str, headline: Headline, sections: Sequence[Section]) -> str:
    """The page's source."""
    style = resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    links = "".join(
        f'<li><a href="#{escape(each.anchor)}">{escape(each.title)}</a></li>' for each in sections
    )
    body = "\n".join(_section(each) for each in sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(title)}</h1><p>{escape(subtitle)}</p></header>\n"
        f"{_headline(headline)}\n<nav><ul>{links}</ul></nav>\n"
        f"<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _headline(headline: Headline) -> str:
    figures = "".join(
        f"<li><b>{escape(value)}</b> {escape(what)}</li>" for value, what in headline.figures
    )
    changes = "".join(f"<li>{escape(each)}</li>" for each in headline.changes)
    return (
        f'<section class="headline {escape(headline.tone)}"><p class="verdict">'
        f"{escape(headline.verdict)}</p><p>{escape(headline.reason)}</p>"
        f"<ul>{figures}</ul><p>What would change it:</p><ol>{changes}</ol></section>"
    )


def _section(section: Section) -> str:
    said = "\n".join(f"<p>{escape(sentence)}</p>" for sentence in section.sentences)
    parts = "\n".join(
        _picture(part) if isinstance(part, Picture) else _table(part) for part in section.parts
    )
    return (
        f'<section id="{escape(section.anchor)}"><h2>{escape(section.title)}</h2>\n'
        f"{said}\n{parts}\n</section>"
    )


def _picture(picture: Picture) -> str:
    numbers = ""
    if picture.numbers is not None:
        numbers = f"<details><summary>the numbers</summary>{_table(picture.numbers)}</details>"
    return (
        f"<figure><figcaption>{escape(picture.caption)}</figcaption>\n{picture.svg}\n</figure>"
        f"{numbers}"
    )


def _table(table: Table) -> str:
    def cells(row: Sequence[str], kind: str) -> str:
        right = ' class="n"'
        return "".join(
            f"<{kind}{right if at >= table.numbers_from else ''}>{_cell(cell)}</{kind}>"
            for at, cell in enumerate(row)
        )

    # A table of sentences: on a narrow screen each row becomes a paragraph.
    words = ' class="words"' if table.numbers_from >= len(table.head) else ""
    caption = f"<caption>{escape(table.caption)}</caption>" if table.caption else ""
    rows = "\n".join(f"<tr>{cells(row, 'td')}</tr>" for row in table.rows)
    return (
        f'<div class="wide"><table{words}>{caption}<thead><tr>{cells(table.head, "th")}</tr>'
        f"</thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    )


def _cell(text: str) -> str:
    said, _, command = text.partition("\n")
    return escape(said) + (f'<br><code class="command">{escape(command)}</code>' if command else "")
