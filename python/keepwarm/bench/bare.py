"""The bare loop's server: `python -m keepwarm.bench.bare FD POOL_BYTES BUFFER_BYTES [CERT KEY]`.

Ends when its standard input does, so that it never outlives whoever measures.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from keepwarm import _core


def _end_with_input() -> None:
    os.read(0, 1)
    os._exit(0)


def main(arguments: list[str]) -> None:
    """Serves until standard input ends."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    listener, pool_bytes, buffers = map(int, arguments[:3])
    files = [Path(name).read_bytes() for name in arguments[3:5]]
    certificate, key = files or (None, None)
    _core.limit_serve(listener, pool_bytes, buffers or None, certificate, key)


if __name__ == "__main__":
    main(sys.argv[1:])
