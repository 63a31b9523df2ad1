"""Runs the engine tests, each file in a process of its own: `run.py [FILE …] [-- PYTEST-OPTIONS]`.

A file has its own engine; one that crashes or hangs it takes no other file with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
FILE_S_MAX = 600.0
NOTHING_COLLECTED = 5


def run(file: Path, options: list[str]) -> str:
    """Empty if the file's tests passed, else what happened."""
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-q", *options, str(file)]
    child = subprocess.Popen(command, start_new_session=True)
    try:
        code = child.wait(FILE_S_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGABRT)  # faulthandler says where each thread is
        child.wait()
        return f"not done within {FILE_S_MAX:.0f} s"
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return "" if code in (0, NOTHING_COLLECTED) else "failed"


def main(given: list[str]) -> int:
    end = given.index("--") if "--" in given else len(given)
    names, options = given[:end], given[end + 1 :]
    files = [Path(name).resolve() for name in names] or sorted(HERE.glob("test_*.py"))
    bad = []
    for file in files:
        start = time.monotonic()
        print(f"== {file.name}", flush=True)
        problem = run(file, options)
        print(f"   {problem or 'passed'} in {time.monotonic() - start:.0f} s", flush=True)
        if problem:
            bad.append(f"{file.name}: {problem}")
    print("\n".join(bad) or f"all {len(files)} files passed")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
