"""Run by an engine's own Python, by path: a program that ends with whoever started it.

    python leash.py PARENT_PID PROGRAM [ARGUMENT…]

The kernel sends SIGTERM when the thread that started us ends, even if it was killed, and the
signal's setting stays over `exec`. Between fork and here the parent may already have gone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ties us to the parent, then becomes the program."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
