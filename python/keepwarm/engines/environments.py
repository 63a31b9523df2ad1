"""A Python environment with exactly what a lock names, every file checked against its hash.

Fetching is the long part: it goes in batches, a few at once, and an attempt that was cut off goes
on with what it had. Installing then needs no network.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TypeAlias

from keepwarm.engines.folders import Report, clear
from keepwarm.errors import KeepwarmError

Command: TypeAlias = Sequence[str | Path]

BATCH = 12
AT_ONCE = 3
_FETCHED = "fetched"
_RETRYING = "WARNING: Retrying"  # a screen of these would hide what failed


class InstallError(KeepwarmError):
    """An environment could not be made: which step failed, and what it said."""


def make_environment(folder: Path, lock: Path, report: Report, free_bytes: int = 0) -> None:
    """Makes `folder` an environment with what `lock` names; needs `free_bytes` on its disk."""
    requirements = locked(lock)
    fetched = folder / _FETCHED
    # What an earlier attempt fetched is part of what is needed.
    free = shutil.disk_usage(folder).free + sum(file.stat().st_size for file in fetched.glob("*"))
    if free < free_bytes:
        raise InstallError(
            f"{folder} has {free >> 20} MiB left on its disk and the environment needs "
            f"{free_bytes >> 20}: free some, or set XDG_CACHE_HOME to a folder elsewhere"
        )
    clear(folder, keep=_FETCHED)
    fetched.mkdir(exist_ok=True)
    start = time.monotonic()
    run([sys.executable, "-m", "venv", folder], "making the environment")
    pip: Command = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
    _fetch_all(pip, requirements, fetched, report)
    report(f"installing {len(requirements)} packages ({time.monotonic() - start:.0f} s so far)")
    offline: Command = ["--no-deps", "--no-index", "--find-links", fetched, "--require-hashes"]
    run([*pip, "install", "-q", "--no-compile", *offline, "-r", lock], "installing")
    shutil.rmtree(fetched)
    report(f"installed in {time.monotonic() - start:.0f} s")


def locked(lock: Path) -> list[str]:
    """The requirements of a lock, each with its hashes, as the lock writes them."""
    found: list[str] = []
    for line in lock.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if line[0].isspace():
            found[-1] += f"\n{line}"
        else:
            found.append(line)
    return found


def _fetch_all(pip: Command, requirements: list[str], fetched: Path, report: Report) -> None:
    count = -(-len(requirements) // BATCH)
    # Dealt out like cards: neighbours in a lock, such as the parts of CUDA, are large together.
    batches = {number: requirements[number::count] for number in range(count)}
    left = {number: batch for number, batch in batches.items() if not _done(fetched, number)}
    start = time.monotonic()
    if len(left) < count:
        report(f"{count - len(left)} of {count} batches were fetched before: going on from there")

    def one(number: int) -> None:
        names = fetched / f"batch-{number}.txt"
        names.write_text("\n".join(left[number]) + "\n", encoding="utf-8")
        fetch(pip, names, fetched)
        names.rename(names.with_suffix(".done"))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = [pool.submit(one, number) for number in left]
        try:
            for done, each in enumerate(as_completed(running), count - len(left) + 1):
                each.result()
                size = sum(file.stat().st_size for file in fetched.glob("*.whl"))
                report(
                    f"fetched {done} of {count} batches, {size / 1e9:.1f} GB, "
                    f"{time.monotonic() - start:.0f} s"
                )
        finally:
            pool.shutdown(cancel_futures=True)


def fetch(pip: Command, lock: Path, folder: Path) -> None:
    """Puts the wheels that a lock names into a folder."""
    exactly = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--no-cache-dir"]
    try:
        run([*pip, "download", "-q", *exactly, "-d", folder, "-r", lock], "fetching")
    except InstallError as error:
        raise InstallError(
            f"{error}\nPackages come from where pip is configured to look: this machine must reach "
            "that. What was fetched is kept"
        ) from None


def _done(fetched: Path, number: int) -> bool:
    return (fetched / f"batch-{number}.done").exists()


def run(command: Command, what: str) -> None:
    """Runs a program to its end; InstallError with what it said if that was a failure."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        said = "\n".join(line for line in lines if not line.startswith(_RETRYING))[-1500:]
        raise InstallError(f"{what} failed: {said or f'exit status {done.returncode}'}")
