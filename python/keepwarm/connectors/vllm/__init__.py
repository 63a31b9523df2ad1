"""Keepwarm below vLLM: the names that vLLM's configuration gives, loaded when asked for.

| name | where vLLM names it |
| --- | --- |
| `KeepwarmTier` | `secondary_tiers: [{"type": …, "module_path": "keepwarm.connectors.vllm"}]` |
| `HostTieringSpec` | `spec_name`, with `spec_module_path`; where vLLM runs on a CPU |
| `KeepwarmOffloadingConnector` | `kv_connector`, with `kv_connector_module_path` |
| `KeepwarmConnector` | the same; without vLLM's host pool in between |

Only the modules behind these names import vLLM and torch; importing this one does not. What both
connectors show on vLLM's /metrics goes through `keepwarm.connectors.vllm.stats`.
"""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = {
    "HostTieringSpec": "keepwarm.connectors.vllm.host_spec",
    "KeepwarmConnector": "keepwarm.connectors.vllm.direct",
    "KeepwarmOffloadingConnector": "keepwarm.connectors.vllm.offloading",
    "KeepwarmTier": "keepwarm.connectors.vllm.tier",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(
            f"keepwarm.connectors.vllm has no {name}: it has {', '.join(sorted(_MODULES))}"
        )
    try:
        found = getattr(importlib.import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "keepwarm":
            raise
        raise ImportError(
            f"keepwarm.connectors.vllm.{name} runs inside vLLM, and this Python has no "
            f"{package}: use it from the environment that vLLM is installed in"
        ) from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
