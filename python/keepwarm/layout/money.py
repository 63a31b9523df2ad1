"""What lost tokens cost: a provider's list price, the operator's own, or none.

No price is invented. Where neither the operator nor the price list names a model, the answer is
None, and reports say so. Amounts are per million tokens in one currency, without conversion.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from keepwarm.errors import ArgumentError

__all__ = ["Price", "Prices", "parse_price", "read_prices"]

MILLION = 1_000_000
# Some prices rise with a prompt's length; this one is in the first class of all of them.
_USUAL_PROMPT_TOKENS = 10_000
_HELP = 'give it as model=input,cached,write per million tokens, as in "my-model=2,0.2,2.5"'


@dataclass(frozen=True, slots=True)
class Price:
    """What a million input tokens cost: computed, read from a cache, written to one."""

    input: float
    cached: float
    write: float
    source: str
    currency: str = "USD"

    def lost(self, tokens: int, written: bool = False) -> float:
        """What `tokens` cost beyond a cache's price because they were computed again.

        `written`: they were put into a cache again too, at its price.
        """
        return tokens * ((self.write if written else self.input) - self.cached) / MILLION


def parse_price(text: str, currency: str = "USD") -> tuple[str, Price]:
    """A model and its price from `model=input,cached,write`; ArgumentError says what is wrong."""
    model, equals, amounts = text.rpartition("=")
    try:
        figures = [float(each) for each in amounts.split(",")]
    except ValueError:
        figures = []
    if not (model and equals and len(figures) == 3):
        raise ArgumentError(f"price {text!r} cannot be read: {_HELP}")
    return model, _price(model, figures, "given by --price", currency)


def _price(model: str, figures: Sequence[float], source: str, currency: str) -> Price:
    if not all(math.isfinite(each) and each >= 0 for each in figures):
        raise ArgumentError(f"price of {model!r} has a negative or endless amount: {_HELP}")
    return Price(figures[0], figures[1], figures[2], source, currency)


def read_prices(path: Path) -> dict[str, Price]:
    """Prices from a JSON file: {"currency": "EUR", "models": {"m": {"input": 2, ...}}}.

    `cached` and `write` of a model default to its `input`. ArgumentError names file and model.
    """
    try:
        document: Any = json.loads(path.read_bytes())
        models = document["models"].items()
        currency = document.get("currency", "USD")
        found = {}
        for model, figures in models:
            base = float(figures["input"])
            amounts = [base, float(figures.get("cached", base)), float(figures.get("write", base))]
            found[model] = _price(model, amounts, str(path), str(currency))
    except OSError as error:
        raise ArgumentError(f"{path}: {error.strerror}: name a readable file of prices") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, ArgumentError):
            raise ArgumentError(f"{path}: {error}") from None
        raise ArgumentError(
            f'{path}: not a file of prices: write {{"models": {{"name": {{"input": 2, "cached": '
            '0.2, "write": 2.5}}}, per million tokens'
        ) from None
    return found


class Prices:
    """Prices by model: the operator's first, then the price list, for providers' models only."""

    def __init__(self, own: Mapping[str, Price] | None = None, has_list: bool = True) -> None:
        self._own = dict(own or {})
        self._has_list = has_list

    @property
    def currency(self) -> str:
        """The one currency of all prices; ArgumentError if the operator gave several."""
        found = {price.currency for price in self._own.values()} or {"USD"}
        if len(found) > 1:
            raise ArgumentError(f"prices in several currencies ({', '.join(sorted(found))})")
        return found.pop()

    def of(self, model: str, is_provider: bool = True) -> Price | None:
        """The price of a model, by its whole name or without what stands before its last slash.

        `is_provider` False: an engine of one's own answers, which no price list knows.
        """
        for name in (model, model.rpartition("/")[2], "*"):
            if name in self._own:
                return self._own[name]
        # Amounts in another currency than the operator's cannot be added to them.
        if not (is_provider and self._has_list and model) or self.currency != "USD":
            return None
        return _listed(model)


@lru_cache(maxsize=1024)
def _listed(model: str) -> Price | None:
    try:
        import genai_prices
    except ImportError:
        return None
    name = model.rpartition("/")[2]
    many = MILLION // _USUAL_PROMPT_TOKENS
    # Some are cheaper at night: one hour for all, so that a log costs the same in each run.
    noon = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)

    def cost(**cache: int) -> tuple[float, str]:
        usage = genai_prices.Usage(input_tokens=_USUAL_PROMPT_TOKENS, **cache)
        found = genai_prices.calc_price(usage, name, genai_request_timestamp=noon)
        return float(found.input_price) * many, f"{found.provider.id}/{found.model.id}"

    try:
        base, named = cost()
        cached, _ = cost(cache_read_tokens=_USUAL_PROMPT_TOKENS)
        write, _ = cost(cache_write_tokens=_USUAL_PROMPT_TOKENS)
    except (LookupError, ValueError):
        return None
    source = f"genai-prices {genai_prices.__version__}: {named}"
    return Price(base, cached, write, source)
