"""A connector that moves nothing and says which namespace it would have, in both of its roles."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from keepwarm.connectors.vllm.identity import namespace_fields
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1, KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

SETTINGS = SimpleNamespace(tenant="default", weights=None)
SAID: dict[str, Any] = {}


class ProbeConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """Notes the fields when it is made."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        given = (vllm_config, kv_cache_config, SETTINGS)
        SAID[role.name] = namespace_fields(*given, mode="direct", parts=1)
        SAID[f"{role.name} tier"] = namespace_fields(*given, mode="tier", parts=1)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...
    def wait_for_layer_load(self, layer_name: str) -> None: ...
    def save_kv_layer(self, *given: Any, **kwargs: Any) -> None: ...
    def wait_for_save(self) -> None: ...
    def get_num_new_matched_tokens(self, *given: Any) -> tuple[int, bool]:
        del given
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, external: int) -> None: ...
    def build_connector_meta(self, *given: Any) -> KVConnectorMetadata:
        del given
        return KVConnectorMetadata()
