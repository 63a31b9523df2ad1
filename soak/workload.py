"""`describe` and `curve` on generated traces of 0.1, 1 and 10 million requests, on one core.

    python soak/workload.py [FOLDER]

Each is measured in a process of its own, bound to one core, in processor seconds (user and system),
since machines are shared. Fails where 10 million take more than the bounds, or where cost grows
faster than the trace.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from keepwarm.workload import parquet
from keepwarm.workload.synth import Kind, Synthetic

SIZES = (100_000, 1_000_000, 10_000_000)
DESCRIBE_S_MAX = 60
CURVE_S_MAX = 120
PEAK_BYTES_MAX = 2 << 30
#: Ten times the requests may cost so many times as much.
GROWTH_MAX = 15
COSTS = Path(__file__).resolve().parent.parent / "tests" / "trace_costs.py"


def figures_of(path: Path) -> dict[str, float]:
    """What a trace costs, on one core."""
    core = str(min(os.sched_getaffinity(0)))
    command = ["taskset", "-c", core, sys.executable, str(COSTS), str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=3600)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> int:
    """Prints a line a size; 1 if a bound is broken."""
    kept = [Path(each) for each in sys.argv[1:2]]
    every = []
    with tempfile.TemporaryDirectory(dir=kept[0] if kept else None) as folder:
        for size in SIZES:
            path = Path(folder) / f"{size}.parquet"
            made = Synthetic(Kind.CHAT, size, seed=1, block_tokens=512)
            parquet.write(path, made.info, made.batches())
            figures = figures_of(path)
            path.unlink()
            every.append(figures)
            print(
                f"workload: {size:,} requests, {figures['block_uses']:,} block uses: describe "
                f"{figures['describe_cpu_s']:.1f} s CPU ({figures['describe_s']:.1f} s passed), "
                f"peak {figures['describe_peak_bytes'] / 2**20:.0f} MiB; curve "
                f"{figures['curve_cpu_s']:.1f} s CPU ({figures['curve_s']:.1f} s passed)",
                flush=True,
            )
    largest = every[-1]
    broken = [
        name
        for name, most in (
            ("describe_cpu_s", DESCRIBE_S_MAX),
            ("curve_cpu_s", CURVE_S_MAX),
            ("peak_bytes", PEAK_BYTES_MAX),
        )
        if largest[name] > most
    ]
    for less, more in pairwise(every):
        growth = more["requests"] / less["requests"] / 10 * GROWTH_MAX
        for name in ("describe_cpu_s", "curve_cpu_s"):
            if more[name] > growth * less[name]:
                broken.append(f"{name} from {less['requests']:,} to {more['requests']:,} requests")
    print(f"workload: {'broken: ' + ', '.join(broken) if broken else 'all bounds hold'}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
