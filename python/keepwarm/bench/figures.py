"""The catalogue of figures. A floor is what a change must not break; a goal is what we want."""

from __future__ import annotations

from typing import NamedTuple


class Figure(NamedTuple):
    """One figure: `least` says that more is better."""

    name: str
    what: str
    floor: float | None
    goal: float | None = None
    least: bool = True
    unit: str = ""

    def passes(self, value: float | None) -> bool | None:
        """Whether a value keeps the floor; None where there is no value, or no floor."""
        if value is None or self.floor is None:
            return None
        return value >= self.floor if self.least else value <= self.floor

    @property
    def wanted(self) -> str:
        """The floor, and the goal, for people."""
        if self.floor is None:
            return "-"
        sign = "≥" if self.least else "≤"
        goal = f" ({self.goal:g})" if self.goal is not None else ""
        return f"{sign} {self.floor:g}{goal}"


def _most(name: str, what: str, floor: float, unit: str = "") -> Figure:
    return Figure(name, what, floor, least=False, unit=unit)


FIGURES: tuple[Figure, ...] = (
    Figure("shm_get_over_memcpy", "shm get, resident, verified, against memcpy", 0.90, 1.0),
    Figure("shm_put_over_memcpy", "shm put, copied and checked twice, against memcpy", 0.45),
    Figure("verify_on_over_off", "the copy that verifies against itself without the hash", 0.90),
    Figure("tcp_get_over_socket", "tcp get, verified, against a bare socket loop", 0.85, 0.95),
    Figure("tcp_put_over_socket", "tcp put, verified, against a bare socket loop", 0.85, 0.95),
    _most("tcp_get_cpu_over_socket", "tcp get: the node's CPU against the bare server's", 1.15),
    _most("tcp_put_cpu_over_socket", "tcp put: the node's CPU against the bare server's", 1.35),
    Figure("tls_get_over_rustls", "get over TLS against a bare rustls loop", 0.85),
    Figure("tls_put_over_rustls", "put over TLS against a bare rustls loop", None),
    Figure("unix_get_over_socket", "get over the Unix socket against a bare loop", None),
    Figure("unix_put_over_socket", "put over the Unix socket against a bare loop", None),
    Figure("flash_get_over_raw", "flash get, O_DIRECT, against a bare io_uring loop", 0.90),
    Figure("flash_put_over_raw", "flash put, O_DIRECT, against a bare io_uring loop", 0.85),
    _most("lookup_8192_p50_ms", "lookup of 8,192 blocks with a lease, Unix socket", 1.0, "ms"),
    _most("index_ns_per_key_1m", "index, 1 Mi entries in random order, CPU a key", 60, "ns"),
    _most("index_ns_per_key_8m", "index, 8 Mi entries in random order, CPU a key", 80, "ns"),
    _most("keys_128k_tokens_ms", "128 Ki tokens in blocks of 16 to keys, one core", 10, "ms"),
    Figure("small_block_ratio", "get of 64 KiB in batches of 256 against 2 MiB", 0.6),
    Figure("local_get_over_mooncake", "same host get against Mooncake Store", 2.0),
    Figure("tcp_get_over_mooncake", "tcp get against Mooncake batch_get_into over tcp", 1.5),
    Figure("local_get_over_redis", "same host get against Valkey over its Unix socket", 2.0),
    Figure("local_get_over_lmcache", "same host get against the LMCache server", 2.0),
)

BY_NAME = {figure.name: figure for figure in FIGURES}
