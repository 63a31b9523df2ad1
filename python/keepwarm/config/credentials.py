"""What a client shows a node."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from keepwarm.config.addresses import ENV_PREFIX
from keepwarm.errors import ConfigError

Files: TypeAlias = tuple[Path | None, Path | None, Path | None, Path | None]

TOKEN_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Certificates for tls://, a token, or both. Files that are replaced are read again.

    `ca` vouches for the node; `certificate` and `key` are the client's own; `revoked` is a list of
    the CA. A `token` is shown under TLS, over the socket and over loopback, and nowhere else.
    """

    ca: str | PathLike[str] | None = None
    certificate: str | PathLike[str] | None = None
    key: str | PathLike[str] | None = None
    revoked: str | PathLike[str] | None = None
    token: str | None = field(default=None, repr=False)

    @classmethod
    def from_folder(cls, folder: str | PathLike[str]) -> Credentials:
        """A folder as `keepwarm certs` makes it: ca.pem, client.pem, client.key, crl.pem, token."""
        path = Path(folder)
        try:
            there = path.is_dir()
        except OSError as error:
            raise ConfigError(f"credentials {path}: {error.strerror}", "credentials") from None
        if not there:
            raise ConfigError(f"credentials {path} is no folder: give one", "credentials")

        def here(name: str) -> Path | None:
            return path / name if (path / name).exists() else None

        token = here("token")
        return cls(
            ca=here("ca.pem"),
            certificate=here("client.pem"),
            key=here("client.key"),
            revoked=here("crl.pem"),
            token=None if token is None else _token(token),
        )

    def files(self) -> Files:
        """As the core takes them."""
        paths = (self.ca, self.certificate, self.key, self.revoked)
        ca, certificate, key, revoked = (None if path is None else Path(path) for path in paths)
        return ca, certificate, key, revoked


def _token(path: Path) -> str:
    """A token's file, which like a private key must be for its owner alone."""
    try:
        mode, text = path.stat().st_mode, path.read_text()[:TOKEN_BYTES_MAX].strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"credentials {path} cannot be read: {error}", "credentials") from None
    if mode & 0o077:
        raise ConfigError(
            f"credentials {path} can be read by others: run chmod 600 {path}", "credentials"
        )
    return text


def find_credentials(value: Credentials | str | PathLike[str] | None) -> Credentials:
    """Given ones, those in a folder, those that KEEPWARM_CREDENTIALS leads to, or none."""
    if isinstance(value, Credentials):
        return value
    if value is None:
        value = os.environ.get(f"{ENV_PREFIX}CREDENTIALS") or None
    if value is None:
        return Credentials()
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(
            f"credentials is {type(value).__name__}: give a folder, or keepwarm.Credentials",
            "credentials",
        )
    return Credentials.from_folder(value)
