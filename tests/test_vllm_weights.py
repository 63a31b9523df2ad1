"""Content names of weights: what changes them, what they cost, and what cannot be named."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path

import keepwarm
import pytest
from keepwarm.connectors.vllm import weights


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "keepwarm" / "weights"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read whole."""
    found: list[str] = []
    whole = weights._read

    def read(file: Path) -> str:
        found.append(file.name)
        return whole(file)

    monkeypatch.setattr(weights, "_read", read)
    # A file that was just written is never kept: here all are old enough.
    monkeypatch.setattr(weights, "YOUNG_S", -1.0)
    return found


def model(folder: Path, **files: bytes) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / f"{name}.safetensors").write_bytes(content)
    return folder


def name(folder: Path, *, sample: bool = False) -> str:
    return weights.content_name(weights.weight_files(folder, "auto"), folder, sample=sample)


def test_a_changed_file_under_the_same_name_is_another_model(
    tmp_path: Path, reads: list[str]
) -> None:
    folder = model(tmp_path / "m", a=b"x" * 1000)
    file = folder / "a.safetensors"
    before, stat = name(folder), file.stat()
    file.write_bytes(b"x" * 999 + b"y")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert name(folder) != before, "same size and same time of change, other content"
    assert len(reads) == 2


def test_the_same_content_elsewhere_is_the_same_model(tmp_path: Path) -> None:
    one, other = (model(tmp_path / each, a=b"1", b=b"2") for each in ("one", "other"))
    assert name(one) == name(other)
    assert name(one) != name(model(tmp_path / "swapped", a=b"2", b=b"1"))


def test_a_hub_cache_is_named_by_its_blobs_and_agrees_with_a_copy(
    tmp_path: Path, reads: list[str]
) -> None:
    content = b"weights" * 99
    blob = tmp_path / "blobs" / hashlib.sha256(content).hexdigest()
    blob.parent.mkdir()
    blob.write_bytes(content)
    snapshot = tmp_path / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    (snapshot / "a.safetensors").symlink_to(Path("../../blobs") / blob.name)
    linked = name(snapshot)
    assert reads == []
    assert linked == name(model(tmp_path / "copy", a=content))


def test_a_blob_that_was_written_to_after_it_was_linked_is_read(
    tmp_path: Path, reads: list[str]
) -> None:
    """Whoever edits a file of a hub's cache writes through the link, and its name stays."""
    blob = tmp_path / "blobs" / hashlib.sha256(b"weights").hexdigest()
    blob.parent.mkdir()
    blob.write_bytes(b"weights")
    (tmp_path / "main").mkdir()
    file = tmp_path / "main" / "a.safetensors"
    file.symlink_to(blob)
    before = name(tmp_path / "main")
    file.write_bytes(b"changed")
    later_ns = file.lstat().st_mtime_ns + 1
    os.utime(blob, ns=(later_ns, later_ns))
    assert name(tmp_path / "main") != before
    assert reads == ["a.safetensors"]


def test_a_link_elsewhere_and_a_blob_without_a_digest_are_read(
    tmp_path: Path, reads: list[str]
) -> None:
    model(tmp_path / "real", a=b"1")
    (tmp_path / "m" / "blobs").mkdir(parents=True)
    (tmp_path / "m" / "blobs" / "main").write_bytes(b"2")
    (tmp_path / "m" / "a.safetensors").symlink_to(tmp_path / "real" / "a.safetensors")
    (tmp_path / "m" / "b.safetensors").symlink_to(tmp_path / "m" / "blobs" / "main")
    name(tmp_path / "m")
    assert sorted(reads) == ["a.safetensors", "b.safetensors"]


def test_a_file_is_read_once_until_it_changes(tmp_path: Path, reads: list[str]) -> None:
    folder = model(tmp_path / "m", a=b"1", b=b"2")
    first = name(folder)
    assert name(folder) == first
    assert sorted(reads) == ["a.safetensors", "b.safetensors"]
    (folder / "b.safetensors").write_bytes(b"3")
    assert name(folder) != first
    assert sorted(reads) == ["a.safetensors", "b.safetensors", "b.safetensors"]


def test_a_file_that_was_just_written_is_not_trusted_to_stay(tmp_path: Path, cache: Path) -> None:
    folder = model(tmp_path / "m", a=b"1")
    name(folder)
    assert [each for each in cache.iterdir() if not each.name.startswith(".")] == []


def test_a_cut_off_digest_is_not_taken(tmp_path: Path, reads: list[str], cache: Path) -> None:
    folder = model(tmp_path / "m", a=b"1")
    first = name(folder)
    (kept,) = [each for each in cache.iterdir() if not each.name.startswith(".")]
    for text in (kept.read_bytes()[:10], b"\xff" * 64, b""):
        kept.write_bytes(text)
        assert name(folder) == first
    assert len(reads) == 4


def test_kept_digests_are_bounded(
    tmp_path: Path, cache: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "KEPT_MAX", 3)
    name(model(tmp_path / "m", **{f"f{i}": bytes([i]) for i in range(8)}))
    assert len([each for each in cache.iterdir() if not each.name.startswith(".")]) <= 3
    assert len(reads) == 8


def test_without_a_place_for_digests_weights_are_named_all_the_same(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model(tmp_path / "m", a=b"1")
    kept = name(folder)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert name(folder) == kept
    assert len(reads) == 2


def test_a_user_without_a_home_starts_all_the_same(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model(tmp_path / "m", a=b"1")
    kept = name(folder)

    def homeless() -> Path:
        raise RuntimeError("could not determine home directory")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert name(folder) == kept
    assert len(reads) == 2


def test_a_file_that_was_young_when_its_reading_began_is_not_kept(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading takes long: a change in the first moments need not show in the file's times."""
    folder, whole = model(tmp_path / "m", a=b"1"), weights._read
    start_s, read = time.time(), [False]

    def slow(file: Path) -> str:
        read[0] = True
        return whole(file)

    monkeypatch.setattr(weights, "_read", slow)
    monkeypatch.setattr(time, "time", lambda: start_s + (60.0 if read[0] else 0.0))
    name(folder)
    assert [each for each in cache.iterdir() if not each.name.startswith(".")] == []


@pytest.mark.parametrize(("load_format", "kind"), [("pt", "pt"), ("npcache", "bin")])
def test_a_loader_of_one_kind_is_named_by_files_of_that_kind(
    tmp_path: Path, load_format: str, kind: str
) -> None:
    """vLLM passes over the safetensors that lie beside them."""
    folder = model(tmp_path / "m", a=b"1")
    file = folder / f"a.{kind}"
    file.write_bytes(b"2")
    assert weights.weight_files(folder, load_format) == [file]
    assert weights.weight_files(folder, "auto") == [folder / "a.safetensors"]


def test_the_index_that_chooses_among_files_is_part_of_the_name(tmp_path: Path) -> None:
    names = set()
    for chosen in ("a", "b"):
        folder = model(tmp_path / chosen, a=b"1", b=b"2")
        text = f'{{"weight_map": {{"w": "{chosen}.safetensors"}}}}'
        (folder / "model.safetensors.index.json").write_text(text)
        names.add(name(folder))
    assert len(names) == 2


def test_two_that_start_together_read_a_file_once(tmp_path: Path, reads: list[str]) -> None:
    folder = model(tmp_path / "m", a=b"1" * (1 << 20))
    names: list[str] = []
    threads = [threading.Thread(target=lambda: names.append(name(folder))) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(set(names)) == 1
    assert len(reads) == 1


def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model(tmp_path / "m", a=b"1")

    def read(file: Path) -> str:
        file.write_bytes(b"22")
        return "0" * 64

    monkeypatch.setattr(weights, "_read", read)
    with pytest.raises(keepwarm.IdentityError, match="changed while it was read") as refused:
        name(folder)
    assert refused.value.field == "weights"


def test_a_sample_says_that_it_is_one_and_misses_what_it_does_not_read(tmp_path: Path) -> None:
    content = bytearray(weights.SAMPLES * weights.SAMPLE_BYTES * 4)
    one = name(model(tmp_path / "one", a=bytes(content)), sample=True)
    content[weights.SAMPLE_BYTES * 2] = 1
    between = name(model(tmp_path / "between", a=bytes(content)), sample=True)
    content[-1] = 1
    last = name(model(tmp_path / "last", a=bytes(content)), sample=True)
    assert one.startswith("sampled:")
    assert one == between
    assert one != last


@pytest.mark.parametrize("kind", ["tensorizer", "runai_streamer_sharded", "ipc_cache", "mine"])
def test_weights_that_are_in_no_file_are_an_error_that_names_the_field(
    tmp_path: Path, kind: str
) -> None:
    with pytest.raises(keepwarm.IdentityError, match="setting `weights`") as refused:
        weights.weight_files(model(tmp_path / "m", a=b"1"), kind)
    assert refused.value.field == "weights"


def test_a_folder_without_weights_is_an_error_that_names_the_field(tmp_path: Path) -> None:
    with pytest.raises(keepwarm.IdentityError, match="no weight files") as refused:
        weights.weight_files(tmp_path, "auto")
    assert refused.value.field == "weights"


def test_one_kind_of_files_is_taken_as_the_loader_does(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", a=b"1")
    (folder / "pytorch_model.bin").write_bytes(b"2")
    assert [each.name for each in weights.weight_files(folder, "auto")] == ["a.safetensors"]
    alone = tmp_path / "m.gguf"
    alone.write_bytes(b"3")
    assert weights.weight_files(alone, "gguf") == [alone]


def test_a_models_own_code_counts_where_it_is_trusted(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", a=b"1")
    (folder / "config.json").write_text("{}")
    (folder / "modeling.py").write_text("pass")
    files = weights.config_files
    assert [each.name for each in files(folder, code=False)] == ["config.json"]
    assert [each.name for each in files(folder, code=True)] == ["config.json", "modeling.py"]
