"""The class that vLLM makes once in the engine core and once in each worker.

    --kv-transfer-config '{"kv_connector": "KeepwarmConnector", "kv_role": "kv_both",
        "kv_connector_module_path": "keepwarm.connectors.vllm",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"address": "…"}}'

Start is where it refuses: settings, layout and identity that cannot be right, and ranks that do not
agree. After that every method is guarded: an exception of ours becomes a miss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from keepwarm.adapter.figures import CATALOGUE, Table, collect
from keepwarm.adapter.session import Session
from keepwarm.adapter.settings import SettingsError, parse_settings
from keepwarm.connectors.vllm.direct.layout import (
    UnknownLayoutError,
    check_groups,
    read_layout,
)
from keepwarm.connectors.vllm.direct.metadata import Handshake, Step
from keepwarm.connectors.vllm.direct.scheduler import Nothing, Scheduler
from keepwarm.connectors.vllm.direct.worker import Worker
from keepwarm.connectors.vllm.guard import guarded, nothing, unshown
from keepwarm.connectors.vllm.identity import agree, namespace_fields
from keepwarm.connectors.vllm.stats import Registered, Shipment, Stats
from keepwarm.errors import IdentityError
from keepwarm.identity import NamespaceFields

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

WHERE = "kv_connector_extra_config"
_SOURCES = {"dram": CacheHitSource.HOST, "flash": CacheHitSource.DISK}


def _nobody(*_: Any) -> tuple[set[str] | None, set[str] | None]:
    return None, None


def _no_blocks(*_: Any) -> set[int]:
    return set()


def _no_load(*_: Any) -> tuple[int | None, bool]:
    return Nothing


def _no_sources(*_: Any) -> dict[CacheHitSource, int]:
    return {}


def _no_orders(*_: Any) -> KVConnectorMetadata:
    return Step()


def _free(*_: Any) -> tuple[bool, dict[str, Any] | None]:
    return False, None


def _not_reset(*_: Any) -> bool:
    return False


class KeepwarmConnector(KVConnectorBase_V1):
    """See the module."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        self._settings = parse_settings(transfer.kv_connector_extra_config, WHERE)
        _check(vllm_config)
        check_groups(kv_cache_config)
        _check_zeroing(vllm_config, kv_cache_config)
        self._scheduler: Scheduler | None = None
        self._worker: Worker | None = None
        self._faults = 0
        self._shipment = Shipment(CATALOGUE, self._figures)
        self._handshake: Handshake | None = None

    @property
    def requires_kv_delivery(self) -> bool:
        """Nobody waits for what is stored: a store that is lost is a later miss."""
        return False

    def _figures(self) -> Table:
        if self._worker is not None:
            table = collect(transfers=self._worker.transfers)
        elif (own := self._scheduler) is not None:
            table = collect(own.accounting, own.lookups, None, own.planner, own.session)
        else:
            return {}
        place = ("keepwarm_connector_faults_total", ())
        self._faults += unshown()
        table[place] = table.get(place, 0.0) + self._faults
        return table

    # The worker's side.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Reads the layout and the identity; raises for what this connector does not know."""
        layout = read_layout(kv_caches, self._kv_cache_config)
        rank = self._vllm_config.parallel_config.rank
        fields = self._fields(layout.description)
        self._worker = Worker(self._settings, fields, layout, rank)
        self._handshake = Handshake(rank, layout.block_bytes, layout.description, dict(fields))

    def _fields(self, layout: str) -> NamespaceFields:
        """The namespace, with how this engine's blocks really lie in memory."""
        fields = namespace_fields(
            self._vllm_config,
            self._kv_cache_config,
            self._settings,
            mode="direct",
            parts=self._vllm_config.parallel_config.world_size,
        )
        fields["layout"] = f"{fields['layout']}: {layout}"
        return fields

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """What the scheduler's side compares over all ranks."""
        return self._handshake

    @guarded(nothing)
    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Called in every step, before anything is written."""
        if self._worker is not None and isinstance(kv_connector_metadata, Step):
            self._worker.begin(kv_connector_metadata)

    @guarded(nothing)
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Starts the loads of this step; they go on between steps."""
        step = self._connector_metadata
        if self._worker is not None and isinstance(step, Step):
            self._worker.load(step)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are over before their request is scheduled."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Blocks are stored whole, after the step."""

    @guarded(nothing)
    def wait_for_save(self) -> None:
        """Starts the stores of this step; waits for nothing."""
        step = self._connector_metadata
        if self._worker is not None and isinstance(step, Step):
            self._worker.store(step)

    @guarded(_nobody)
    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Requests whose load has ended, each once. No request waits for its stores."""
        return None, self._worker.finished() if self._worker is not None else None

    @guarded(_no_blocks)
    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that vLLM has to compute after all; with the request in `get_finished`."""
        return self._worker.failed() if self._worker is not None else set()

    @guarded(nothing)
    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """What has ended in this step."""
        return self._worker.report() if self._worker is not None else None

    # The scheduler's side.

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: Mapping[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """All ranks' identities, before the first request: they agree, or the engine stops."""
        ranks = [each for each in metadata.values() if isinstance(each, Handshake)]
        expected = self._vllm_config.parallel_config.world_size
        if len(ranks) != expected:
            raise IdentityError(
                f"{len(ranks)} of {expected} ranks have said what they keep: all have to run "
                "KeepwarmConnector",
                "parallel",
            )
        fields = self._fields(ranks[0].layout)
        for each in ranks:
            if (difference := agree(fields, each.fields)) is not None:
                raise difference
        session = Session(self._settings, fields)
        policy = str(self._vllm_config.kv_transfer_config.kv_load_failure_policy)
        session.about["load_failure_policy"] = policy
        self._scheduler = Scheduler(
            self._settings,
            session,
            block_tokens=self._vllm_config.cache_config.block_size,
            block_bytes=sum(each.block_bytes for each in ranks),
            ranks=expected,
        )

    @guarded(nothing)
    def on_new_request(self, request: Request) -> None:
        """Asks the memory early."""
        if self._scheduler is not None:
            self._scheduler.arrive(request)

    @guarded(_no_load)
    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """What will be loaded beyond the device's hits; None until the memory has answered."""
        if self._scheduler is None:
            return Nothing
        return self._scheduler.matched(request, num_computed_tokens)

    @guarded(nothing)
    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """The blocks to load into."""
        if self._scheduler is not None and num_external_tokens:
            self._scheduler.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    @guarded(_no_sources)
    def get_external_cache_hit_sources(
        self, request: Request, num_external_tokens: int
    ) -> dict[CacheHitSource, int]:
        """By tier: memory of a node is the host's, flash is disk."""
        if self._scheduler is None:
            return {}
        counted: dict[CacheHitSource, int] = {}
        for tier, tokens in self._scheduler.sources(request).items():
            source = _SOURCES.get(tier, CacheHitSource.EXTERNAL_UNSPECIFIED)
            counted[source] = counted.get(source, 0) + tokens
        return counted

    @guarded(_no_orders)
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """This step's orders."""
        return Step() if self._scheduler is None else self._scheduler.orders(scheduler_output)

    @guarded(nothing)
    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """What the workers say."""
        if self._scheduler is not None:
            self._scheduler.report(connector_output)

    @guarded(_free)
    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Never keeps blocks: see `keepwarm.connectors.vllm.direct.stores`."""
        if self._scheduler is not None:
            self._scheduler.finished(request, block_ids)
        return False, None

    @guarded(_not_reset)
    def reset_cache(self) -> bool:
        """The weights may be others now: on to a private namespace."""
        if self._scheduler is not None:
            self._scheduler.reset()
        return True

    # Both.

    @guarded(nothing)
    def get_kv_connector_stats(self) -> Stats | None:
        """Figures on their way to /metrics, of this side."""
        own = self._scheduler
        return self._shipment.take(own is not None and own.accounting.has_news())

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Stats | None:
        """Figures as vLLM carries them between processes."""
        return Stats() if data is None else Stats(data=data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> Registered:
        """In the process that serves /metrics."""
        return Registered(CATALOGUE, vllm_config, metric_types, labelnames, per_engine_labelvalues)

    @guarded(nothing)
    def shutdown(self) -> None:
        """Ends our threads. vLLM does not always call it, and nothing depends on it."""
        if self._worker is not None:
            self._worker.close()
        if self._scheduler is not None:
            self._scheduler.close()


def _check(config: VllmConfig) -> None:
    """Refuses what would be wrong or silently useless."""
    policy = config.kv_transfer_config.kv_load_failure_policy
    if policy != "recompute":
        raise SettingsError(
            "kv_transfer_config",
            "kv_load_failure_policy",
            f"kv_load_failure_policy is {policy!r}: a load that fails would fail its request; set "
            'it to "recompute"',
        )
    if config.kv_transfer_config.kv_role != "kv_both":
        raise SettingsError(
            "kv_transfer_config",
            "kv_role",
            f"kv_role is {config.kv_transfer_config.kv_role!r}: set it to kv_both",
        )
    parallel = config.parallel_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise IdentityError(
                f"{name} is {getattr(parallel, name)}: KeepwarmConnector knows tensor and pipeline "
                "parallel engines only",
                "parallel",
            )
    if config.model_config.enable_sleep_mode:
        raise SettingsError(
            "model_config",
            "enable_sleep_mode",
            "a sleeping vLLM takes its KV memory away while stores still read it: leave "
            "--enable-sleep-mode out, or use the tier (KeepwarmOffloadingConnector)",
        )


def _check_zeroing(config: VllmConfig, cache: KVCacheConfig) -> None:
    """Stores are fenced in `handle_preemptions`: nothing may write a block before it in a step."""
    if cache.needs_kv_cache_zeroing and config.use_v2_model_runner:
        raise UnknownLayoutError(
            "the cache mixes element types, and vLLM's second model runner clears new blocks "
            "before it says which (VLLM_USE_V2_MODEL_RUNNER=0 takes the first)"
        )
