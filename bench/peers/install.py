"""Installs peers for `keepwarm bench`, each with its dependencies pinned by hash beside this file.

`python bench/peers/install.py mooncake valkey`: an environment a peer in the user's cache folder,
named by its lock, so that a second call does nothing. What is installed serves the bench alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Shared libraries that a peer's wheel expects of the system: Debian's packages of them, which are
# unpacked beside the environment and installed nowhere.
LIBRARIES = {"mooncake": ("libibverbs1", "libnl-3-200", "libnl-route-3-200")}


def cache() -> Path:
    """Where environments are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "keepwarm" / "bench-peers"


def install(peer: str) -> None:
    """Makes an environment, unless it is there, and says how to run the peer in it."""
    lock, runner = HERE / f"{peer}.txt", HERE / f"run_{peer}.py"
    if not lock.exists() or not runner.exists():
        known = ", ".join(sorted(path.stem for path in HERE.glob("*.in")))
        raise SystemExit(f"bench-peers: {peer} is unknown: give some of {known}")
    name = hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
    folder = cache() / f"{peer}-{name}"
    if not (folder / "complete").exists():
        print(f"== {peer}: installing into {folder}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        _environment(folder, lock)
        _libraries(folder, LIBRARIES.get(peer, ()))
        (folder / "complete").touch()
    for source in (runner, HERE / "runner.py"):
        shutil.copy(source, folder)
    found = sorted({str(each.parent) for each in (folder / "libraries").rglob("*.so*")})
    manifest = {
        "python": str(folder / "bin" / "python"),
        "runner": str(folder / runner.name),
        "environment": {"LD_LIBRARY_PATH": ":".join(found)} if found else {},
    }
    (cache() / f"{peer}.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    print(f"== {peer}: ready", flush=True)


def _environment(folder: Path, lock: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [
        folder / "bin" / "python",
        "-m",
        "pip",
        "install",
        "-q",
        "--no-cache-dir",
        "--no-compile",
    ]
    subprocess.run([*pip, "--require-hashes", "-r", lock], check=True)


def _libraries(folder: Path, packages: tuple[str, ...]) -> None:
    if not packages:
        return
    if not shutil.which("apt-get"):
        print(f"   without apt-get the system must have {', '.join(packages)}", flush=True)
        return
    with tempfile.TemporaryDirectory() as fetched:
        subprocess.run(["apt-get", "download", "-q", *packages], cwd=fetched, check=True)
        for each in Path(fetched).glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", each, folder / "libraries"], check=True)


if __name__ == "__main__":
    cache().mkdir(parents=True, exist_ok=True)
    for given in sys.argv[1:]:
        install(given)
