"""Who is let in over the network: `keepwarm certs`, principals, credentials, and their reload."""

from __future__ import annotations

import signal
import stat
from pathlib import Path

import keepwarm
import pytest
from keepwarm import ConfigError, NodeError, Outcome, Status, _core
from keepwarm.config import Credentials, load
from nodes import keys_of, make
from served import WAIT_S, run, served

PRINCIPALS = """
[principals.engine]
certificate = "engine"
tenants = ["default"]
rights = ["read", "write"]
[principals.reader]
token = "{token}"
tenants = ["default"]
rights = ["read"]
"""


def bundles(folder: Path) -> tuple[Path, list[str]]:
    """A folder of `certs init` with a token for the reader, and the flags of its node."""
    home = folder / "pki"
    made = run("certs", "init", str(home), "--client", "engine", "--client", "reader")
    assert made.returncode == 0, made.stderr
    token = run("certs", "token", "--out", str(home / "client-reader" / "token"))
    assert token.returncode == 0, token.stderr
    for name in ("client.pem", "client.key"):
        (home / "client-reader" / name).unlink()  # it comes with its token alone
    told = token.stdout.split('"')[1]
    (folder / "principals.toml").write_text(PRINCIPALS.format(token=told))
    node = home / "node"
    flags = ["--listen", "tls://localhost:0", "--principals", str(folder / "principals.toml")]
    flags += ["--tls-cert", str(node / "node.pem"), "--tls-key", str(node / "node.key")]
    return home, [*flags, "--tls-ca", str(node / "ca.pem")]


def test_a_fleet_of_one_is_made_served_revoked_and_reloaded(tmp_path: Path) -> None:
    home, flags = bundles(tmp_path)
    listed = run("certs", "revoke", str(home))
    assert listed.returncode == 0, listed.stderr
    with served(tmp_path, *flags, "--tls-crl", str(home / "ca" / "crl.pem")) as node:
        (where,) = node.said["settings"]["listen"]["value"]
        engine = keepwarm.connect(where, credentials=home / "client-engine", deadline_s=WAIT_S)
        reader = keepwarm.connect(where, credentials=home / "client-reader", deadline_s=WAIT_S)
        with engine, reader:
            space, other = engine.attach(make()), reader.attach(make())
            keys = keys_of(space.namespace, 1)
            stored = space.put_from(keys, b"x" * 5000, deadline_s=WAIT_S)
            assert stored == [Outcome(Status.STORED)]
            into = bytearray(5000)
            assert other.get_into(keys, into, deadline_s=WAIT_S) == [Outcome(Status.OK)]
            assert bytes(into) == b"x" * 5000
            (refused,) = other.put_from(
                keys_of(space.namespace, 2)[16:], b"y" * 9, deadline_s=WAIT_S
            )
            assert refused.status is Status.SHED, refused
            assert "no right to write" in str(reader.health()["last_error"])
            assert "capacity_bytes" not in reader.stat(), "of the whole node"

            assert run("certs", "revoke", str(home), str(home / "client-engine")).returncode == 0
            node.process.send_signal(signal.SIGHUP)
            assert node.next_line()["event"] == "reloaded"
            assert other.get_into(keys, into, deadline_s=WAIT_S) == [Outcome(Status.OK)]
            with pytest.raises(NodeError, match="as revoked"):
                keepwarm.connect(where, credentials=home / "client-engine", deadline_s=WAIT_S)
        with pytest.raises(ConfigError, match="needs the CA"):
            keepwarm.connect(where)
        assert node.end() == 0


def test_files_are_for_their_owner_alone_and_never_overwritten(tmp_path: Path) -> None:
    home = tmp_path / "pki"
    made = run("certs", "init", str(home), "--node", "cache.test", "--days", "1")
    assert made.returncode == 0, made.stderr
    assert f"--tls-cert {home}/node/node.pem" in made.stdout
    for file in home.rglob("*"):
        assert stat.S_IMODE(file.stat().st_mode) == (0o700 if file.is_dir() else 0o600), file
    before = (home / "ca" / "ca.pem").read_text()
    assert run("certs", "init", str(home), "--client", "more").returncode == 0
    assert (home / "ca" / "ca.pem").read_text() == before
    again = run("certs", "init", str(home), "--client", "more")
    assert again.returncode == 2
    assert "is there already" in again.stderr
    assert run("certs", "init", str(tmp_path / "x"), "--days", "0").returncode == 2


@pytest.mark.parametrize(
    ("table", "error"),
    [
        ("uid = 1", "has no tenants"),
        ('tenants = ["a"]\nuid = 1', "has no rights"),
        ('tenants = ["a"]\nrights = ["read"]', "cannot show who it is"),
        ('tenants = ["a"]\nrights = ["fly"]\nuid = 1', "known are read, write, drop, admin, arena"),
        ('tenants = ["a"]\nrights = ["read"]\ntoken = "x"', "is no hash: give sha256:"),
        ('tenants = ["a"]\nrights = ["read"]\nuid = -1', "give user ids"),
        ('tenants = ["a"]\nrights = ["read"]\nuid = "x"', "give a number"),
        ('tenants = ["a"]\nrigths = ["read"]\nuid = 1', "did you mean rights"),
    ],
)
def test_principals_that_cannot_be_are_refused(tmp_path: Path, table: str, error: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"[principals.one]\n{table}")
    with pytest.raises(ConfigError, match=error):
        load({}, {}, file)


def test_tls_without_anybody_does_not_start(tmp_path: Path) -> None:
    refused = run(
        "serve",
        "--address",
        str(tmp_path / "s"),
        "--admin",
        "off",
        "--capacity",
        "4MiB",
        "--listen",
        "tls://127.0.0.1:0",
    )
    assert refused.returncode == 2
    assert "name principals" in refused.stderr
    open_to_all = run(
        "serve",
        "--address",
        str(tmp_path / "s"),
        "--admin",
        "off",
        "--capacity",
        "4MiB",
        "--listen",
        "tcp://0.0.0.0:0",
    )
    assert open_to_all.returncode == 2
    assert "can be reached by others: listen on tls://" in open_to_all.stderr


def test_credentials_never_show_their_token(tmp_path: Path) -> None:
    token = "kw_0123456789abcdef0123456789abcdef"
    assert token not in repr(Credentials(token=token))
    assert _core.token_hash(token).startswith("sha256:")
    with pytest.raises(ConfigError, match="shorter than 32") as refused:
        keepwarm.connect(tmp_path / "s", credentials=Credentials(token="short-and-secret"))
    assert "short-and-secret" not in str(refused.value)
    with pytest.raises(ConfigError, match="is no folder"):
        keepwarm.connect(tmp_path / "s", credentials="/absent")
    with pytest.raises(ConfigError, match="File name too long"):
        keepwarm.connect(tmp_path / "s", credentials="x" * 5000)


def test_a_token_that_others_may_read_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("kw_0123456789abcdef0123456789abcdef\n")
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by others: run chmod 600"):
        Credentials.from_folder(tmp_path)
    path.chmod(0o600)
    assert Credentials.from_folder(tmp_path).token == "kw_0123456789abcdef0123456789abcdef"
