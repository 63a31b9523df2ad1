"""What `describe` and `curve` cost for a Parquet trace, as one JSON object: run by tests and soak.

Processor time of this process (user and system), since machines are shared; seconds passed beside.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

from keepwarm.workload.curve import measure_curve
from keepwarm.workload.measures import measure
from keepwarm.workload.parquet import ParquetTrace


def peak_bytes() -> int:
    """Most that was resident since this program began; getrusage would count who started it too."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def main() -> None:
    path = Path(sys.argv[1])
    begun, at = time.process_time(), time.monotonic()
    told = measure(ParquetTrace(path))
    described, passed = time.process_time(), time.monotonic()
    peak = peak_bytes()
    curve = measure_curve(ParquetTrace(path))
    figures = {
        "requests": told.requests,
        "block_uses": told.block_uses,
        "distinct_blocks": round(told.distinct_blocks.value),
        "watched_blocks": curve.watched_blocks,
        "describe_cpu_s": described - begun,
        "describe_s": passed - at,
        "curve_cpu_s": time.process_time() - described,
        "curve_s": time.monotonic() - passed,
        "describe_peak_bytes": peak,
        "peak_bytes": peak_bytes(),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
