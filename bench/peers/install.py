"""Installs peers for `keepwarm bench`, each with its dependencies pinned by hash beside this file.

`python bench/peers/install.py mooncake valkey`: an environment a peer in the user's cache folder,
named by its lock, so that a second call does nothing. What is installed serves the bench alone.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from keepwarm.engines.environments import make_environment
from keepwarm.engines.folders import cache, ensure_folder

HERE = Path(__file__).resolve().parent
CACHE = cache() / "bench-peers"
# Shared libraries that a peer's wheel expects of the system: Debian's packages of them, which are
# unpacked beside the environment and installed nowhere.
LIBRARIES = {"mooncake": ("libibverbs1", "libnl-3-200", "libnl-route-3-200")}


def install(peer: str) -> None:
    """Makes an environment, unless it is there, and says how to run the peer in it."""
    lock, runner = HERE / f"{peer}.txt", HERE / f"run_{peer}.py"
    if not lock.exists() or not runner.exists():
        known = ", ".join(sorted(path.stem for path in HERE.glob("*.in")))
        raise SystemExit(f"bench-peers: {peer} is unknown: give some of {known}")
    name = hashlib.sha256(lock.read_bytes()).hexdigest()[:12]

    def say(line: str) -> None:
        print(f"== {peer}: {line}", flush=True)

    def make(folder: Path) -> None:
        say(f"installing into {folder}")
        make_environment(folder, lock, say)
        _libraries(folder, LIBRARIES.get(peer, ()))

    folder = ensure_folder(CACHE / f"{peer}-{name}", make, say)
    for source in (runner, HERE / "runner.py"):
        shutil.copy(source, folder)
    found = sorted({str(each.parent) for each in (folder / "libraries").rglob("*.so*")})
    manifest = {
        "python": str(folder / "bin" / "python"),
        "runner": str(folder / runner.name),
        "environment": {"LD_LIBRARY_PATH": ":".join(found)} if found else {},
    }
    (CACHE / f"{peer}.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    say("ready")


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
    for given in sys.argv[1:]:
        install(given)
