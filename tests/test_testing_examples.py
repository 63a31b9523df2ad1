"""The examples in the docstrings of `keepwarm.testing` run, and its names are what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest
from keepwarm import testing

MODULES = sorted(f"keepwarm.testing.{each.name}" for each in pkgutil.iter_modules(testing.__path__))


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.failed == 0


def test_the_page_of_the_documentation() -> None:
    page = Path(__file__).parent.parent / "docs" / "testing.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, page.name, "exec"), {})


def test_all_names_are_there_and_sorted() -> None:
    assert all(hasattr(testing, name) for name in testing.__all__)
    assert testing.__all__ == sorted(testing.__all__)
