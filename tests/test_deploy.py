"""What is deployed: the unit, the alerts and the dashboard fit the command and the catalogue."""

from __future__ import annotations

import configparser
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from keepwarm.config import load
from keepwarm.config.files import read_toml

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """The program that makes the dashboard."""
    spec = importlib.util.spec_from_file_location("generate", DEPLOY / "grafana/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Unit(configparser.RawConfigParser):
    """A unit's sections; a name may come twice."""

    def __init__(self) -> None:
        super().__init__(strict=False, delimiters=("=",), comment_prefixes=("#",))

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def test_the_unit_starts_what_there_is(tmp_path: Path) -> None:
    unit = Unit()
    unit.read(DEPLOY / "systemd/keepwarm.service")
    service = unit["Service"]
    assert (service["Type"], service["ExecReload"]) == ("notify", "/bin/kill -HUP $MAINPID")
    words = shlex.split(service["ExecStart"])
    assert words[:4] == ["/usr/bin/env", "keepwarm", "serve", "--json"]
    flags = dict(zip(words[4::2], words[5::2], strict=True))
    config = flags.pop("--config")
    assert config.startswith(f"/etc/{service['ConfigurationDirectory']}/")
    address = flags["--address"]
    assert address.startswith(f"unix:/run/{service['RuntimeDirectory']}/")
    # The file that goes with it, under the environment that the manager makes.
    given = {name.removeprefix("--").replace("-", "_"): value for name, value in flags.items()}
    file = DEPLOY / "systemd" / Path(config).name
    state = {"STATE_DIRECTORY": f"/var/lib/{service['StateDirectory']}"}
    loaded = load(given, state, file)
    assert loaded.origins["state_dir"] == "STATE_DIRECTORY"
    assert set(read_toml(file, "config")) == {"capacity", "ttl", "drain"}
    drains = int(service["TimeoutStopSec"].removesuffix("min")) * 60
    assert loaded.config.drain < drains
    assert service["LimitMEMLOCK"] == "infinity"
    assert int(service["LimitNOFILE"]) >= 16_384 + 64, "for any clients_max"
    assert int(service["TasksMax"]) >= 16_384 + 64
    if analyze := shutil.which("systemd-analyze"):
        copy = tmp_path / "keepwarm.service"
        copy.write_text((DEPLOY / "systemd/keepwarm.service").read_text())
        said = subprocess.run([analyze, "verify", str(copy)], capture_output=True, text=True)
        assert "Unknown" not in said.stderr, said.stderr


def test_alerts_and_dashboard_name_metrics_that_there_are(generate: ModuleType) -> None:
    text = (DEPLOY / "prometheus/alerts.yml").read_text()
    used = generate.used(text)
    assert len(used) >= 12
    assert used - generate.names() == set()
    alerts = re.findall(r"^ {6}- alert: (\w+)$", text, re.MULTILINE)
    assert len(set(alerts)) == len(alerts) == len(re.findall(r"^ {8}expr:", text, re.MULTILINE))
    assert len(alerts) == len(re.findall(r"^ {10}action: ", text, re.MULTILINE))
    for query in re.findall(r"expr: (.+?)(?=^ {8}\w)", text, re.MULTILINE | re.DOTALL):
        assert query.count("(") == query.count(")"), query


def test_the_dashboard_is_what_the_catalogue_makes(generate: ModuleType) -> None:
    assert generate.FILE.read_text() == generate.text(), "run python deploy/grafana/generate.py"
    made = json.loads(generate.text())
    panels = [panel for panel in made["panels"] if panel["type"] != "row"]
    assert all(panel["targets"] for panel in panels)
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])


def test_a_name_that_is_gone_stops_the_dashboard(
    generate: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = generate.Panel("x", "none", {"x": "keepwarm_no_such_thing"})
    monkeypatch.setitem(generate.ROWS, "x", [panel])
    with pytest.raises(ValueError, match="not in the catalogue: keepwarm_no_such_thing"):
        generate.text()
