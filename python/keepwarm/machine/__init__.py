"""What the machine, and the control groups and limits of this process, have to give.

`memory.py` says how much memory is left, `limits.py` what other limits mean for a node, `files.py`
reads the kernel's small files. Imports nothing of the package.
"""

from keepwarm.machine.limits import Finding, findings, raise_descriptors
from keepwarm.machine.memory import UNKNOWN_BYTES, memory_available

__all__ = ["UNKNOWN_BYTES", "Finding", "findings", "memory_available", "raise_descriptors"]
