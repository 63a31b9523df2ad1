"""Settings: addresses, sizes, durations, and what `keepwarm serve` runs with.

A setting has one name everywhere: `--idle` as a flag, `KEEPWARM_IDLE` in the environment, `idle` in
the TOML file. A flag wins over the environment, the environment over the file, the file over the
default. A name that is not known is refused with the nearest that is.
"""

from keepwarm.config.addresses import (
    Admin,
    check_private,
    default_address,
    is_socket,
    make_folder,
    parse_address,
    parse_addresses,
    parse_admin,
)
from keepwarm.config.credentials import Credentials, find_credentials
from keepwarm.config.files import read_toml
from keepwarm.config.flash import Device, flash_row, parse_admission, parse_flash
from keepwarm.config.principals import Principal, parse_principals, principal_rows
from keepwarm.config.serve import DEFAULTS, PARSERS, Loaded, ServeConfig, default_node_name, load
from keepwarm.config.tenants import Tenant, tenant_rows, terms
from keepwarm.config.units import parse_duration, parse_size, show_duration, show_size

__all__ = [
    "DEFAULTS",
    "PARSERS",
    "Admin",
    "Credentials",
    "Device",
    "Loaded",
    "Principal",
    "ServeConfig",
    "Tenant",
    "check_private",
    "default_address",
    "default_node_name",
    "find_credentials",
    "flash_row",
    "is_socket",
    "load",
    "make_folder",
    "parse_address",
    "parse_addresses",
    "parse_admin",
    "parse_admission",
    "parse_duration",
    "parse_flash",
    "parse_principals",
    "parse_size",
    "principal_rows",
    "read_toml",
    "show_duration",
    "show_size",
    "tenant_rows",
    "terms",
]
