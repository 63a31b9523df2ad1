"""A connector's metrics: the catalogue and the figures are the same list."""

from __future__ import annotations

import re
from pathlib import Path

import keepwarm
from adapters import fake_session
from keepwarm.adapter import figures
from keepwarm.adapter.accounting import Accounting
from keepwarm.adapter.lookups import Lookups
from keepwarm.adapter.prober import Prober
from keepwarm.adapter.transfers import Transfers
from keepwarm.planner import Planner
from keepwarm.testing import eventually


def test_every_figure_is_in_the_catalogue_and_the_other_way_round() -> None:
    session, _ = fake_session()
    planner = Planner()
    prober = Prober(session, planner)
    lookups = Lookups(session, deadline_s=1.0)
    transfers = Transfers(session, load_threads=1, store_threads=1, loads_max=1, stores_max=1)
    eventually(lambda: planner.figures()["probes"] == 3, "the prober has measured")
    table = figures.collect(Accounting(), lookups, transfers, planner, session)
    known = {figure.name: figure for figure in figures.CATALOGUE}
    assert {name for name, _ in table} == set(known)
    for name, labels in table:
        assert len(labels) == len(known[name].labels)
        assert name.endswith("_total") is (known[name].kind == "counter")
    doubled = figures.merge(table, table)
    assert all(
        doubled[key] == (2 * value if known[key[0]].kind == "counter" else value)
        for key, value in table.items()
    )
    assert all(known[name].kind == "gauge" for name, _ in figures.grown(table, table))
    for part in (prober, lookups, transfers, session):
        part.close()


def test_tokens_of_a_tier_that_nobody_knows_are_counted_all_the_same() -> None:
    accounting = Accounting()
    for tier in ("dram", "tape", None):
        accounting.begin("r", 10)
        accounting.restored("r", tier, 10)
        accounting.finish("r")
    table = figures.collect(accounting)
    shown = {key[1][0]: value for key, value in table.items() if key[0] == figures.TOKENS.name}
    assert sum(shown.values()) == accounting.totals().prompt == 30
    assert shown["restored_unknown"] == 20


def test_what_an_engine_is_to_the_memory() -> None:
    session, _ = fake_session()
    session.about["load_failure_policy"] = "recompute"

    def told() -> dict[str, float]:
        table = figures.collect(session=session)
        return {key[1][0]: value for key, value in table.items() if key[0] == figures.INFO.name}

    first = session.namespace.fingerprint.hex()
    assert told() == {first: 1.0}
    session.move("the weights have changed")
    assert told() == {first: 0.0, session.namespace.fingerprint.hex(): 1.0}
    labels = next(key[1] for key in figures.collect(session=session) if key[0] == figures.INFO.name)
    assert labels[1:] == (session.about["connector"], keepwarm.__version__, "recompute")
    session.close()


def test_documents_name_figures_that_there_are() -> None:
    names = {figure.name for figure in figures.CATALOGUE}
    assert len(names) == len(figures.CATALOGUE)
    root = Path(__file__).resolve().parent.parent
    for page in sorted(root.glob("docs/*.md")):
        said = set(re.findall(r"keepwarm_(?:connector|planner)_[a-z_]+[a-z]", page.read_text()))
        assert said <= names, f"{page.name} names {sorted(said - names)}"
