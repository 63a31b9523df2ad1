"""A real engine's namespace: every field, the same in scheduler and worker, and what changes it."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keepwarm
import pytest
from keepwarm.connectors.vllm import facts, weights
from keepwarm.connectors.vllm.identity import agree, namespace_fields

from engine import probe
from engine.harness import Engine

CONNECTOR = {"kv_connector": "ProbeConnector", "kv_connector_module_path": "engine.probe"}


def fields(engine: Engine, **settings: Any) -> dict[str, Any]:
    given = SimpleNamespace(**vars(probe.SETTINGS) | settings)
    cache = engine.scheduler.kv_cache_config
    return dict(namespace_fields(engine.vllm_config, cache, given, mode="direct", parts=1))


@pytest.fixture(scope="module")
def engine(make_engine: Callable[..., Engine]) -> Engine:
    return make_engine("micro", CONNECTOR)


def test_both_roles_name_the_same_namespace(engine: Engine) -> None:
    del engine
    for mode in ("", " tier"):
        scheduler, worker = probe.SAID["SCHEDULER" + mode], probe.SAID["WORKER" + mode]
        assert agree(scheduler, worker) is None
        names = keepwarm.Namespace(**scheduler)
        assert len(names.encoding) < 4096
    assert probe.SAID["SCHEDULER"] == fields_said_of_micro(probe.SAID["SCHEDULER"])


def fields_said_of_micro(said: dict[str, Any]) -> dict[str, Any]:
    """What can be known without looking."""
    return said | {
        "tenant": "default",
        "load": ["auto", "none"],
        "kv_dtype": "auto=float32",
        "kv_heads": [2],
        "head_dim": [[32, 32]],
        "layout": "LBHNC opaque",
        "attention_backend": "CPU_ATTN",
        "block_tokens": 32,
        "connector": "keepwarm vllm direct 1",
        # 512 bytes a token and layer in fp32, 2 layers, 32 tokens
        "run_blocks": (32 << 20) // (512 * 2 * 32),
        "parts": 1,
    }


def test_other_bytes_under_the_same_name_are_another_model(
    engine: Engine, model: Callable[[str], Path], tmp_path: Path
) -> None:
    before = fields(engine)
    copy = tmp_path / "copy"
    shutil.copytree(model("micro"), copy)
    config = engine.vllm_config.model_config
    held = config.model
    try:
        config.model = str(copy)
        assert fields(engine) == before, "another folder with the same content is the same model"
        with (copy / "model.safetensors").open("r+b") as file:
            file.seek(-1, 2)
            last = file.read(1)
            file.seek(-1, 2)
            file.write(bytes([last[0] ^ 1]))
        changed = fields(engine)
    finally:
        config.model = held
    assert {name for name in before if before[name] != changed[name]} == {"weights"}


def test_what_changes_the_bytes_changes_the_namespace(
    engine: Engine, make_engine: Callable[..., Engine]
) -> None:
    before = fields(engine)
    for options, differ in (
        ({"block_size": 64}, {"block_tokens", "kv_options", "run_blocks"}),
        ({"dtype": "bfloat16"}, {"kv_dtype", "quantisation", "kv_options", "isa", "run_blocks"}),
    ):
        changed = fields(make_engine("micro", CONNECTOR, **options))
        found = {name for name in before if before[name] != changed[name]}
        # The packing of bf16 depends on the machine.
        assert found - {"isa"} == differ - {"isa"}, options


def test_a_model_of_a_hubs_cache_is_found_by_its_name_and_named_by_its_blobs(
    tmp_path: Path,
) -> None:
    content, revision = b"weights", "a" * 40
    digest = hashlib.sha256(content).hexdigest()
    repository = tmp_path / "models--org--name"
    for folder in ("refs", "blobs", f"snapshots/{revision}"):
        (repository / folder).mkdir(parents=True)
    (repository / "refs" / "main").write_text(revision)
    (repository / "blobs" / digest).write_bytes(content)
    snapshot = repository / "snapshots" / revision
    (snapshot / "model.safetensors").symlink_to(Path("../../blobs") / digest)
    assert facts.model_folder("org/name", None, str(tmp_path)) == snapshot
    assert weights.file_digest(snapshot / "model.safetensors") == digest
    with pytest.raises(FileNotFoundError):
        facts.model_folder("org/none", None, str(tmp_path))
