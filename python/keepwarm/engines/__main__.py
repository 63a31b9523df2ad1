"""`python -m keepwarm.engines`: installs the engine if it is not there, prints its interpreter."""

from __future__ import annotations

import sys

from keepwarm.engines.install import ensure_engine

if __name__ == "__main__":
    print(ensure_engine(lambda line: print(line, file=sys.stderr, flush=True)))
