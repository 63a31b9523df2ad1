"""Settings: what is accepted, what wins, and what an error says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from keepwarm import ConfigError, config
from keepwarm.config import Admin, Tenant, load, parse_address, parse_admin, parse_duration
from keepwarm.config import parse_size as size
from keepwarm.machine import memory_available


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("4096", 4096),
        ("16GiB", 16 << 30),
        ("1.5 GiB", 3 << 29),
        ("2gb", 2_000_000_000),
        ("512 MiB", 512 << 20),
        ("1TiB", 1 << 40),
        ("7k", None),
        ("7KiB", 7168),
        ("-1", None),
        ("GiB", None),
        ("1e9", None),
        ("", None),
        (4096, 4096),
        (-1, None),
        (True, None),
        (1.5, None),
        (None, None),
    ],
)
def test_sizes(text: object, count: int | None) -> None:
    if count is None:
        with pytest.raises(
            ConfigError, match=r"capacity is .*: give bytes, such as 16GiB"
        ) as caught:
            size(text, "capacity")
        assert caught.value.setting == "capacity"
    else:
        assert size(text, "capacity") == count


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2", 2.0),
        (2, 2.0),
        (0.5, 0.5),
        ("500ms", 0.5),
        ("30s", 30.0),
        ("10 m", 600.0),
        ("1.5h", 5400.0),
        ("1d", 86400.0),
        ("soon", None),
        ("-1s", None),
        (-1, None),
        (float("nan"), None),
        (float("inf"), None),
        (True, None),
    ],
)
def test_durations(text: object, seconds: float | None) -> None:
    if seconds is None:
        says = r"idle is .*: give a time( of at most 3650 days)?, such as 500ms"
        with pytest.raises(ConfigError, match=says):
            parse_duration(text, "idle")
    else:
        assert parse_duration(text, "idle") == seconds


def test_sizes_are_shown_as_people_read_them() -> None:
    shown = [config.show_size(count) for count in (0, 1023, 1024, 3 << 29, 5 << 40, 5 << 50)]
    assert shown == ["0 B", "1023 B", "1.0 KiB", "1.5 GiB", "5.0 TiB", "5120.0 TiB"]


def test_admin_addresses() -> None:
    assert parse_admin("127.0.0.1:1", "admin") == Admin("127.0.0.1", 1)
    assert parse_admin("localhost:2", "admin") == Admin("127.0.0.1", 2)
    assert parse_admin("9", "admin") == Admin("127.0.0.1", 9)
    assert parse_admin(9, "admin") == Admin("127.0.0.1", 9)
    assert str(parse_admin("[::1]:3", "admin")) == "http://[::1]:3"
    assert parse_admin("off", "admin") is None
    with pytest.raises(ConfigError, match="which others can reach: give a loopback address"):
        parse_admin("0.0.0.0:80", "admin")
    for bad in ("", "x", "127.0.0.1", "127.0.0.1:99999", "host:80", ":-1"):
        with pytest.raises(ConfigError, match="give host:port, such as"):
            parse_admin(bad, "admin")


def test_the_default_address(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("KEEPWARM_ADDRESS", "unix:/a/b")
    assert parse_address(None) == "/a/b"
    monkeypatch.delenv("KEEPWARM_ADDRESS")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert parse_address(None) == "/run/user/7/keepwarm.sock"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert parse_address(None) == "/run/keepwarm/keepwarm.sock"
    monkeypatch.setattr(os, "geteuid", lambda: 123456)
    assert parse_address(None) == "/tmp/keepwarm-123456/keepwarm.sock"
    monkeypatch.chdir(folder)
    assert parse_address("x.sock") == str(folder / "x.sock")


def test_a_shared_folder_is_used_only_if_it_is_ours(folder: Path) -> None:
    ours = folder / "ours"
    config.check_private(ours)
    ours.mkdir(mode=0o700)
    config.check_private(ours)
    ours.chmod(0o755)
    with pytest.raises(ConfigError, match="is open to others: run chmod 700"):
        config.check_private(ours)
    link = folder / "link"
    link.symlink_to(ours)
    with pytest.raises(ConfigError, match="belongs to somebody else: set KEEPWARM_ADDRESS"):
        config.check_private(link)


def test_flags_over_environment_over_file_over_defaults(folder: Path) -> None:
    file = folder / "node.toml"
    file.write_text('capacity = "1GiB"\npolicy = "fifo"\nidle = "1m"\ndrain = 3\n')
    env = {"KEEPWARM_POLICY": "s3fifo", "KEEPWARM_IDLE": "2m", "KEEPWARM_CONFIG": str(file)}
    loaded = load({"idle": "3m"}, env)
    settings, origins = loaded.config, loaded.origins
    assert (settings.capacity, settings.policy) == (1 << 30, "s3fifo")
    assert (settings.idle, settings.drain, settings.clients_max) == (180.0, 3.0, 256)
    assert origins["capacity"] == f"file {file}"
    assert origins["policy"] == "KEEPWARM_POLICY"
    assert origins["idle"] == "--idle"
    assert origins["clients_max"] == "default"


def test_defaults_depend_on_the_machine() -> None:
    loaded = load({}, {})
    available = memory_available()
    assert 0.5 < loaded.config.capacity / (available / 4) < 2
    assert loaded.origins["capacity"].startswith("default: a quarter of the ")
    assert loaded.config.policy == "default"
    assert str(loaded.config.state_dir) == f"{loaded.config.address}.state"
    assert load({"state_dir": "off"}, {}).config.state_dir is None
    by_systemd = load({}, {"STATE_DIRECTORY": "/var/lib/keepwarm:/other"})
    assert by_systemd.config.state_dir == Path("/var/lib/keepwarm")


def test_tenants_come_from_the_file(folder: Path) -> None:
    file = folder / "node.toml"
    file.write_text('[tenants.a]\nsecret = "/s"\nquota = "1MiB"\nttl = "1h"\n[tenants.default]\n')
    tenants = load({}, {}, file).config.tenants
    assert tenants == {"a": Tenant("/s", "1MiB", "1h"), "default": Tenant()}
    assert config.tenant_rows(tenants) == [
        ("a", "/s", 1 << 20, 3600.0, None, None),
        ("default", None, None, None, None, None),
    ]


BAD_FILES = {
    'capacty = "1GiB"': "setting capacty in .* is unknown: did you mean capacity",
    "colour = 1": "setting colour in .* is unknown: known are address, admin",
    "[tenants.a]\nsecrets = 1": "setting tenants.a.secrets is unknown: did you mean secret",
    "[tenants.a]\nquota = 5": "tenants.a has no secret: give the path of a file",
    '[tenants.default]\nsecret = "x"': "tenants.default has a secret, but tenant default has a",
    '[tenants.a]\nsecret = "x"\nquota = "much"': "tenants.a.quota is 'much': give bytes",
    '[tenants.a]\nsecret = "x"\npriority_max = 4': "tenants.a.priority_max is 4: give a whole",
    '[tenants."a.b"]\nsecret = "x"': "tenants.a.b has a dot in its name",
    "tenants = 3": r"tenants is 3: give tables \[tenants.NAME\]",
    "[tenants]\na = 3": r"tenants.a is 3: give a table \[tenants.a\]",
    'capacity = "some"': "capacity is 'some': give bytes.*from file",
    "policy = 'best'": "policy is 'best': give one of default, ",
    "populate = 'maybe'": "populate is 'maybe': give true or false",
    "clients_max = 0": "clients_max is 0: give a whole number from 1 to 16384",
    "clients_max = 16385": "clients_max is 16385: give a whole number from 1 to 16384",
    f"clients_max = '{'9' * 5000}'": r"clients_max is '999.*\.\.\.: give a whole number",
    "max_blocks = 5000000000": "max_blocks is 5000000000: give a whole number from 1 to 268435456",
    "capacity = 9223372036854775807": "capacity is 9223372036854775807: give at most 1024 PiB",
    "capacity = '99999999999999999999'": "capacity is '9{20}': give at most 1024 PiB",
    f"capacity = '{'9' * 400}TiB'": r"capacity is '999.*\.\.\.: give at most 1024 PiB",
    "idle = '4000d'": "idle is '4000d': give a time of at most 3650 days",
    f"idle = '{'9' * 400}'": "give a time of at most 3650 days",
    "[tenants.a]\nsecret = 5": "tenants.a.secret is 5: give the path of a file with 64 hex digits",
    "[tenants.a]\nsecret = '/s'\nquota = '9999999TiB'": "tenants.a.quota is .* at most 1024 PiB",
    "max_blocks = true": "max_blocks is True: give a whole number",
    "admin = '1.2.3.4:5'": "which others can reach",
    "node = ''": "node is '': give a name",
    "address = 5": "address is 5: give unix:/path",
    "address = 'tcp:1'": "address tcp:1 is of a kind that",
    "state_dir = 7": "state_dir is 7: give a path, or off",
    f"idle = {'9' * 5000}": "is no TOML: Exceeds the limit",
    "ttl = 'x'": "ttl is 'x': give a time",
    "this is no toml": "is no TOML",
}


@pytest.mark.parametrize("text", BAD_FILES)
def test_bad_files_are_named(folder: Path, text: str) -> None:
    file = folder / "node.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=BAD_FILES[text]) as caught:
        load({}, {}, file)
    assert caught.value.setting


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match="file /absent cannot be read: No such file"):
        load({}, {}, "/absent")


@pytest.mark.parametrize("digits", [30, 5000])
def test_a_number_that_nothing_holds_is_named(digits: int) -> None:
    count = 10**digits
    for parse in (size, parse_duration, config.PARSERS["max_blocks"]):
        with pytest.raises(ConfigError, match=r"it is .*: give"):
            parse(count, "it")


def test_tenants_are_no_variable() -> None:
    with pytest.raises(ConfigError, match="KEEPWARM_TENANTS is unknown: tenants are in the file"):
        load({}, {"KEEPWARM_TENANTS": "x"})


def test_slips_in_variables_are_refused_but_not_what_others_set() -> None:
    with pytest.raises(ConfigError, match="KEEPWARM_CAPACTY is unknown: did you mean KEEPWARM_CAP"):
        load({}, {"KEEPWARM_CAPACTY": "1GiB"})
    harmless: dict[str, Any] = {
        "KEEPWARM_PORT": "tcp://10.0.0.1:80",
        "KEEPWARM_PORT_80_TCP_ADDR": "10.0.0.1",
        "KEEPWARM_SERVICE_HOST": "10.0.0.1",
        "KEEPWARM_TEST_SEED": "1",
        "KEEPWARM_TRACES": "/data",
        "KEEPWARM_CONFIG": "",
        "KEEPWARM_POLICY": "",
        "PATH": "/bin",
    }
    assert load({}, harmless).config.policy == "default"


def test_the_parsers_know_every_setting() -> None:
    assert set(config.PARSERS) == set(config.ServeConfig.__dataclass_fields__)


def test_durations_have_three_digits_in_the_unit_that_fits() -> None:
    shown = {0.0: "0 us", 2.5e-6: "2.5 us", 0.0123: "12.3 ms", 0.9994: "999 ms", 1.5: "1.5 s"}
    assert {each: config.show_duration(each) for each in shown} == shown
    assert config.show_duration(999.6) == "1,000 s"
