"""What a prompt's tokens cost in time and money: computed, restored, kept.

seconds to compute `t` tokens behind `f` others = c + a·t + b·Σ positions of them
seconds to restore them from a tier             = latency + t · bytes a token / bytes a second
GPU-seconds                                     = seconds to compute · GPUs of a replica
money                                           = GPU-seconds, GiB kept, GiB moved, at their prices

`a` and `b` come from the model's arithmetic and a GPU's peak times what of it is reached (MFU), or
`a` from a measured rate. Restoring takes no GPU time; where it would take longer than computing,
tokens are computed, as a connector's planner does. Every price has its currency and its source.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from keepwarm.errors import ConfigError
from keepwarm.workload.geometry import Geometry

GIB = 1 << 30
HOURS_A_MONTH = 730.0
#: Share of a GPU's peak that long prompts reach in the usual engines: an assumption.
MFU = 0.45
TIERS = ("device", "host", "dram", "flash", "object")


@dataclass(frozen=True, slots=True)
class Price:
    """So much money for one unit of something."""

    value: float
    unit: str  # what one unit is
    source: str


@dataclass(frozen=True, slots=True)
class Prices:
    """All in one currency."""

    currency: str
    gpu_hour: Price
    dram_gib_month: Price
    flash_gib_month: Price
    node_month: Price
    network_gib: Price

    def as_json(self) -> dict[str, Any]:
        """Each price with its unit and source."""
        named = ("gpu_hour", "dram_gib_month", "flash_gib_month", "node_month", "network_gib")
        return {"currency": self.currency} | {
            name: {"value": each.value, "unit": each.unit, "source": each.source}
            for name in named
            for each in (getattr(self, name),)
        }


@dataclass(frozen=True, slots=True)
class Rate:
    """How one request's blocks come from a tier when no other is beside it."""

    latency_s: float
    bytes_per_s: float
    source: str


@dataclass(frozen=True, slots=True)
class NodeShape:
    """What one node of the memory has."""

    dram_bytes: int
    flash_bytes: int
    network_bytes_per_s: float
    flash_bytes_per_s: float
    source: str


@dataclass(frozen=True, slots=True)
class CostModel:
    """Everything that turns tokens into seconds and money, with where it comes from."""

    kv_bytes_per_token: float  # that a memory keeps and moves
    prefill_fixed_s: float  # c: a request's own, whatever its length
    prefill_token_s: float  # a
    prefill_position_s: float  # b
    prefill_source: str
    restore: Mapping[str, Rate]  # by tier
    gpus: int  # of one replica
    node: NodeShape
    prices: Prices

    def prefill_s(self, first: int, tokens: int) -> float:
        """To compute `tokens` of them behind `first` others."""
        if tokens <= 0:
            return 0.0
        positions = tokens * (first + (tokens - 1) / 2)
        return (
            self.prefill_fixed_s
            + self.prefill_token_s * tokens
            + self.prefill_position_s * positions
        )

    def restore_s(self, tier: str, tokens: int) -> float:
        """To bring so many tokens' blocks from a tier."""
        rate = self.restore[tier]
        moved = tokens * self.kv_bytes_per_token
        return rate.latency_s + moved / rate.bytes_per_s if tokens > 0 else 0.0

    def ttft_s(self, tokens: int, found: Mapping[str, int]) -> float:
        """Time to the first token without a queue: restore what is faster so, compute the rest.

        `found` are the tokens of the prefix that each tier has, from the beginning on in the order
        of the tiers.
        """
        at, total = 0, 0.0
        for tier in TIERS:
            count = min(found.get(tier, 0), tokens - at)
            if count <= 0:
                continue
            restored = self.restore_s(tier, count)
            computed = self.prefill_s(at, count) - self.prefill_fixed_s
            total += min(restored, computed)
            at += count
        rest = self.prefill_s(at, tokens - at)
        return total + (rest or self.prefill_fixed_s)

    def pays_to_restore(self, tier: str, tokens: int) -> bool:
        """Whether a prefix of so many tokens comes faster from a tier than it is computed."""
        return self.restore_s(tier, tokens) < self.prefill_s(0, tokens) - self.prefill_fixed_s

    def restored_from(self, tier: str) -> float:
        """Tokens of a prefix above which it comes faster from a tier than it is computed."""
        rate, b = self.restore[tier], self.prefill_position_s
        # latency + t · moved = a · t + b · t · (t - 1) / 2
        gained = self.prefill_token_s - b / 2 - self.kv_bytes_per_token / rate.bytes_per_s
        if b == 0:
            return rate.latency_s / gained if gained > 0 else math.inf
        return (math.sqrt(gained * gained + 2 * b * rate.latency_s) - gained) / b

    def gpu_second(self) -> float:
        """Money for a second of one GPU."""
        return self.prices.gpu_hour.value / 3600

    def scaled(self, **factors: float) -> CostModel:
        """With some parts multiplied: `prefill`, `restore` (rates) or a price's name."""
        model = self
        for name, factor in factors.items():
            model = _SCALES[name](model, factor)
        return model

    def as_json(self) -> dict[str, Any]:
        """All parameters, with sources: documented in docs/workload.md."""
        return {
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "prefill": {
                "fixed_s": self.prefill_fixed_s,
                "per_token_s": self.prefill_token_s,
                "per_position_s": self.prefill_position_s,
                "gpus_per_replica": self.gpus,
                "source": self.prefill_source,
            },
            "restore": {
                tier: {
                    "latency_s": rate.latency_s,
                    "bytes_per_s": rate.bytes_per_s,
                    "source": rate.source,
                }
                for tier, rate in self.restore.items()
            },
            "node": {
                "dram_bytes": self.node.dram_bytes,
                "flash_bytes": self.node.flash_bytes,
                "network_bytes_per_s": self.node.network_bytes_per_s,
                "flash_bytes_per_s": self.node.flash_bytes_per_s,
                "source": self.node.source,
            },
            "prices": self.prices.as_json(),
        }


def _scale_prefill(model: CostModel, factor: float) -> CostModel:
    return replace(
        model,
        prefill_fixed_s=model.prefill_fixed_s / factor,
        prefill_token_s=model.prefill_token_s / factor,
        prefill_position_s=model.prefill_position_s / factor,
    )


def _scale_restore(model: CostModel, factor: float) -> CostModel:
    faster = {
        tier: replace(
            rate, latency_s=rate.latency_s / factor, bytes_per_s=rate.bytes_per_s * factor
        )
        for tier, rate in model.restore.items()
    }
    return replace(model, restore=faster)


def _scale_price(name: str) -> Any:
    def scale(model: CostModel, factor: float) -> CostModel:
        price: Price = getattr(model.prices, name)
        dearer: dict[str, Any] = {name: replace(price, value=price.value * factor)}
        return replace(model, prices=replace(model.prices, **dearer))

    return scale


_SCALES: dict[str, Any] = {
    "prefill": _scale_prefill,
    "restore": _scale_restore,
    **{
        name: _scale_price(name)
        for name in ("gpu_hour", "dram_gib_month", "flash_gib_month", "node_month", "network_gib")
    },
}


def cost_model(
    geometry: Geometry,
    block_tokens: int,
    *,
    gpu: str = "h100",
    gpus: int = 1,
    mfu: float = MFU,
    gpu_hour: float | None = None,
    prefill_tokens_per_s: float | None = None,
    prices: Path | None = None,
) -> CostModel:
    """A model's costs on some GPUs. `prices` is a file of the form of `prices.toml`, or of a part.

    `prefill_tokens_per_s`: measured at the beginning of a prompt, instead of the GPU's peak. Raises
    ConfigError that names what cannot be.
    """
    table = _overridden(prices) if prices else _defaults()
    chip = _chip(table, gpu)
    if gpus < 1:
        raise ConfigError(f"gpus is {gpus}: give 1 or more", "gpus")
    if not 0 < mfu <= 1:
        raise ConfigError(f"mfu is {mfu}: give a share of the peak, above 0 and up to 1", "mfu")
    a, b, source = _prefill(geometry, chip, gpu, gpus, mfu, prefill_tokens_per_s)
    return CostModel(
        kv_bytes_per_token=geometry.stored_bytes_per_token(block_tokens),
        prefill_fixed_s=0.0,
        prefill_token_s=a,
        prefill_position_s=b,
        prefill_source=source,
        restore={tier: _rate(table, tier) for tier in TIERS},
        gpus=gpus,
        node=_node(table),
        prices=_prices(table, gpu, gpu_hour),
    )


def gpus_known() -> tuple[str, ...]:
    """Names of the GPUs in the table."""
    return tuple(_defaults()["gpus"])


def _prefill(
    geometry: Geometry,
    chip: Mapping[str, Any],
    gpu: str,
    gpus: int,
    mfu: float,
    measured: float | None,
) -> tuple[float, float, str]:
    work = geometry.work
    if measured is not None:
        if not 0 < measured < math.inf:
            raise ConfigError("prefill-tokens-per-second must be above 0", "prefill")
        ratio = work.flops_per_position / work.flops_per_token if work else 0.0
        shape = (
            "growth by position from the model's arithmetic" if work else "no growth by position"
        )
        return 1 / measured, ratio / measured, f"{measured:g} tokens/s as measured; {shape}"
    if work is None:
        raise ConfigError(geometry.work_missing, "prefill")
    peak = _number(chip, f"gpus.{gpu}", "bfloat16")
    reached = peak * gpus * mfu
    return (
        work.flops_per_token / reached,
        work.flops_per_position / reached,
        f"{work.weights / 1e9:.1f} G weights a token, {gpus} x {gpu} at {peak / 1e12:g} TFLOP/s "
        f"({chip.get('source', 'no source given')}), {100 * mfu:g} % of it reached (assumption)",
    )


@cache
def _defaults() -> Mapping[str, Any]:
    text = resources.files("keepwarm.workload").joinpath("prices.toml").read_text("utf-8")
    return tomllib.loads(text)


def _overridden(path: Path) -> Mapping[str, Any]:
    """The defaults, with what a file says otherwise, and the file as its source."""
    try:
        given = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", "prices") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not TOML: {error}", "prices") from None
    base = dict(_defaults())
    _check_form(base, given, path, "")
    priced = given.get("prices", {})
    if given.get("currency", base["currency"]) != base["currency"]:
        if set(priced) < set(base["prices"]):
            raise ConfigError(
                f"{path} has another currency than {base['currency']}: give all of its prices then",
                "prices",
            )
        base["prices"] = {}  # and of GPUs those alone whose price it gives
    named: dict[str, Any] = {"sources": dict.fromkeys(priced, path.name) | given.get("sources", {})}
    for part in ("gpus", "restore"):
        named[part] = {name: _from(each, path) for name, each in given.get(part, {}).items()}
    if "node" in given:
        named["node"] = _from(given["node"], path)
    return _merged(base, {**given, **named})


def _check_form(base: Mapping[str, Any], given: Mapping[str, Any], path: Path, where: str) -> None:
    """Tables where the defaults have tables, and at the top no names that they have not."""
    for name, value in given.items():
        if not where and name not in base:
            raise ConfigError(f"{path}: {name!r} is nothing that prices.toml has", "prices")
        if isinstance(base.get(name), dict):
            if not isinstance(value, dict):
                raise ConfigError(f"{path}: {where}{name} must be a table", "prices")
            _check_form(base[name], value, path, f"{where}{name}.")


def _from(part: Any, path: Path) -> Any:
    """Figures without a source of their own are of the file."""
    return {"source": path.name, **part} if isinstance(part, dict) else part


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(base)
    for name, value in over.items():
        known = both.get(name)
        both[name] = (
            _merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
        )
    return both


def _chip(table: Mapping[str, Any], gpu: str) -> Mapping[str, Any]:
    chip = table["gpus"].get(gpu)
    if not isinstance(chip, dict):
        raise ConfigError(f"gpu is {gpu!r}: give one of {', '.join(table['gpus'])}", "gpu")
    return chip


def _prices(table: Mapping[str, Any], gpu: str, gpu_hour: float | None) -> Prices:
    priced, sources = table["prices"], table["sources"]

    def price(name: str, unit: str) -> Price:
        return Price(_number(priced, "prices", name), unit, str(sources.get(name, "prices.toml")))

    if gpu_hour is not None:
        hour = Price(_above(gpu_hour, "gpu-hour"), f"hour of one {gpu}", "as given (--gpu-hour)")
    else:
        value = _number(priced["gpu_hour"], "prices.gpu_hour", gpu)
        hour = Price(value, f"hour of one {gpu}", str(sources["gpu_hour"]))
    return Prices(
        currency=str(table["currency"]),
        gpu_hour=hour,
        dram_gib_month=price("dram_gib_month", "GiB of DRAM for a month"),
        flash_gib_month=price("flash_gib_month", "GiB of flash for a month"),
        node_month=price("node_month", "node for a month"),
        network_gib=price("network_gib", "GiB moved"),
    )


def _rate(table: Mapping[str, Any], tier: str) -> Rate:
    found = table["restore"].get(tier, {})
    where = f"restore.{tier}"
    speed = _number(found, where, "bytes_per_s")
    if speed == 0:
        raise ConfigError(f"{where}.bytes_per_s is 0: give what it reaches", where)
    return Rate(_number(found, where, "latency_s"), speed, str(found.get("source", "as given")))


def _node(table: Mapping[str, Any]) -> NodeShape:
    found = table["node"]
    if (
        _number(found, "node", "dram_gib") == 0
        or _number(found, "node", "network_bytes_per_s") == 0
    ):
        raise ConfigError("a node has DRAM and a network: give both above 0", "node")
    return NodeShape(
        dram_bytes=int(_number(found, "node", "dram_gib") * GIB),
        flash_bytes=int(_number(found, "node", "flash_gib") * GIB),
        network_bytes_per_s=_number(found, "node", "network_bytes_per_s"),
        flash_bytes_per_s=_number(found, "node", "flash_bytes_per_s"),
        source=str(found.get("source", "as given")),
    )


def _number(table: Any, where: str, name: str) -> float:
    value = table.get(name) if isinstance(table, dict) else None
    if value is None:
        raise ConfigError(f"{where} does not say {name}", f"{where}.{name}")
    return _above(value, f"{where}.{name}")


def _above(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ConfigError(f"{where} is no number from 0 on", where)
    return float(value)
