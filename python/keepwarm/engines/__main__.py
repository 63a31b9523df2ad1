"""`python -m keepwarm.engines`: installs the engine if it is not there, prints its interpreter."""

from __future__ import annotations

import sys

from keepwarm.engines.environments import InstallError
from keepwarm.engines.install import ensure_engine


def main() -> None:
    """Progress goes to standard error, so that the answer can be taken from standard output."""
    try:
        print(ensure_engine(lambda line: print(f"engine: {line}", file=sys.stderr, flush=True)))
    except InstallError as error:
        sys.exit(f"keepwarm: {error}")


if __name__ == "__main__":
    main()
