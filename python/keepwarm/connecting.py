"""How a memory is come by: a store in this process, a node, or several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike

from keepwarm import _core
from keepwarm.arguments import real, whole
from keepwarm.client import DEADLINE_S, Embedded, Memory, Transport
from keepwarm.config import (
    Credentials,
    Tenant,
    default_node_name,
    find_credentials,
    flash_row,
    parse_addresses,
    parse_admission,
    parse_flash,
    parse_size,
    tenant_rows,
)

CONNECTIONS_MAX = 8


def open(
    capacity: int | str,
    *,
    policy: str = "default",
    max_blocks: int | None = None,
    ttl_s: float | None = None,
    tenants: Mapping[str, Tenant] | None = None,
    state_dir: str | PathLike[str] | None = None,
    populate: bool = True,
    flash: Sequence[str | PathLike[str]] | str = (),
    flash_budget: int | str | None = None,
    flash_admission: str = "reuse",
    format: bool = False,
    drain_s: float = 10.0,
) -> Memory:
    """A memory inside this process, without a server: `keepwarm.open("2GiB")`.

    `capacity` is bytes, or text such as 2GiB. `populate` touches all of it at once, so that it
    is surely there; without it the first puts are slower, and a machine out of memory kills the
    process later. Epochs survive a restart only with a `state_dir`.

    `flash` is files or block devices, each PATH or PATH=SIZE for a file that is made: a second tier
    that outlives the process, for which a `state_dir` is needed too. Of what memory holds, `close`
    writes the rest there for at most `drain_s`. `format` erases the devices first. At most
    `flash_budget` bytes a day are written, of blocks that were used after they were stored, or of
    all with `flash_admission="all"`.
    """
    devices = parse_flash(flash, "flash")
    store = _core.Store(
        parse_size(capacity, "capacity"),
        policy=policy,
        max_blocks=None if max_blocks is None else whole("max_blocks", max_blocks, 32),
        tenants=tenant_rows(tenants or {}),
        ttl_s=None if ttl_s is None else real("ttl_s", ttl_s),
        state_dir=state_dir,
        populate=populate,
        flash=flash_row(
            devices,
            erase=format,
            budget=None if flash_budget is None else parse_size(flash_budget, "flash_budget"),
            admission=parse_admission(flash_admission, "flash_admission"),
        ),
    )
    drains = real("drain_s", drain_s) if devices else None
    return Memory(_core.Memory.embedded(store), CONNECTIONS_MAX, Embedded(store, drains))


def connect(
    address: str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
    *,
    connections_max: int = CONNECTIONS_MAX,
    deadline_s: float = DEADLINE_S,
    transport: Transport = "auto",
    credentials: Credentials | str | PathLike[str] | None = None,
) -> Memory:
    """A memory on a node, or on several: `keepwarm.connect()`.

    `address` is unix:/path, a path, tcp://host:port (plain text) or tls://host:port; without one
    KEEPWARM_ADDRESS, else the default socket. A node that is not there is no error: calls miss with
    `store_down` until it is, and then find it by themselves. With too few connections threads wait
    for each other's transfers.

    `credentials` are a folder as `keepwarm certs init` makes it, or `keepwarm.Credentials`; without
    them the folder of KEEPWARM_CREDENTIALS. A node that is there and refuses them raises
    `NodeError`, as does one that is not to be trusted; later both are `store_down` with the reason
    in `Memory.health()`.

    `transport` says how bytes travel to a node on this machine: `auto` is by shared memory where
    the node gives its arena out, else over the socket, and `Memory.health()` says which and why;
    `shm` insists, and raises where that cannot be; `unix` is over the socket.

    Several addresses, as a list or with commas between, and dns://name:port (a node at each address
    of the name) are several nodes as one memory. All clients must spell them alike: blocks are
    placed by them. A namespace whose `run_blocks` is not 1 is then asked with a `Prompt`.
    """
    where, count = parse_addresses(address), whole("connections_max", connections_max, 16)
    time_s, shown = real("deadline_s", deadline_s), find_credentials(credentials)
    if len(where) > 1 or where[0].startswith("dns:"):
        return connect_fleet(where, count, time_s, transport, shown)
    core = _core.Memory.connect(
        where[0],
        count,
        time_s,
        default_node_name(),
        transport,
        files=shown.files(),
        token=shown.token,
    )
    return Memory(core, threads=count)


def connect_fleet(
    addresses: Sequence[str],
    connections_max: int = CONNECTIONS_MAX,
    deadline_s: float = DEADLINE_S,
    transport: Transport = "auto",
    credentials: Credentials | None = None,
    timing: tuple[float, float] | None = None,
) -> Memory:
    """As `connect`, for parsed addresses; `timing`: grace and ramp in seconds, for tests."""
    shown = credentials or Credentials()
    core = _core.Memory.connect_fleet(
        list(addresses),
        connections_max,
        deadline_s,
        default_node_name(),
        transport,
        files=shown.files(),
        token=shown.token,
        timing=timing,
    )
    return Memory(core, threads=connections_max)
