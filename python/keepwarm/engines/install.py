"""The pinned vLLM for the CPU, in an environment of its own in the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path

from keepwarm.engines.folders import Report, cache

INTERPRETER = "KEEPWARM_ENGINE_PYTHON"


def ensure_engine(report: Report) -> Path:
    """The interpreter of the engine's environment, which is made now if it is not there.

    KEEPWARM_ENGINE_PYTHON names another interpreter that has vLLM and what Keepwarm needs.
    """
    given = os.environ.get(INTERPRETER)
    if given:
        report(f"using the engine of {given}")
        return Path(given)
    return cache() / "vllm-tmp" / "bin" / "python"
