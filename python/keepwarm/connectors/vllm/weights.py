"""Content names of files: which weights an engine has loaded, whatever their folder is called.

A file of a hub's cache is a link to a blob that is named by its SHA-256, and that name is taken,
unless the blob was written to after the link was made.
Any other file is read whole, once: its digest is kept in the user's cache folder under the file's
device, inode, size and times, so that a changed file is read again. Both ways give the same name,
so a replica that has a copy shares with one that has the hub's cache.

Imports no engine.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from keepwarm.errors import IdentityError

if TYPE_CHECKING:
    from collections.abc import Iterator

LOG = logging.getLogger("keepwarm.weights")
FIELD = "weights"

THREADS_MAX = 8
READ_BYTES = 8 << 20
# Said in the log from here on: reading takes seconds.
LARGE_BYTES = 4 << 30
SAMPLE_BYTES = 64 << 10
SAMPLES = 64
# A file this young may still change without its times telling.
YOUNG_S = 2.0
# Digests that are kept; the oldest leave.
KEPT_MAX = 4096

# In the order in which vLLM's loader looks for them.
_KINDS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
# What those read that look for one kind alone, whatever else lies beside it.
_KINDS_OF = {"pt": ("*.pt",), "npcache": ("*.bin", "*.pt")}
# It decides which of the files of a folder are loaded.
_INDEX = "*.safetensors.index.json"
# Loaders that read such files from the model's folder.
_LOADERS = frozenset(
    {
        *("auto", "hf", "safetensors", "fastsafetensors", "instanttensor", "mistral", "pt"),
        *("npcache", "gguf", "bitsandbytes", "sharded_state", "runai_streamer"),
    }
)
# What besides the weights decides what a model computes.
_CONFIGS = ("config.json", "params.json", "quantize_config.json", "hf_quant_config.json")
_BLOB = re.compile(r"[0-9a-f]{64}")


def weight_files(model: Path, load_format: str) -> list[Path]:
    """The files that hold the weights of a model, which is a folder or a file; and an index."""
    if load_format not in _LOADERS:
        raise IdentityError(
            f"{FIELD} cannot be determined: load format {load_format!r} does not read files of the "
            "model's folder; give the setting `weights` a name that changes when the weights do",
            FIELD,
        )
    if model.is_file():
        return [model]
    kinds = _KINDS_OF.get(load_format, _KINDS)
    for kind in kinds:
        if found := sorted(model.glob(kind)):
            return [*found, *sorted(model.glob(_INDEX))] if kind == "*.safetensors" else found
    raise IdentityError(
        f"{FIELD} cannot be determined: {model} has no weight files ({', '.join(kinds)}); give "
        "the setting `weights` a name that changes when the weights do",
        FIELD,
    )


def config_files(model: Path, code: bool) -> list[Path]:
    """What says how a model computes; with `code`, its own code too. None for a single file."""
    if model.is_file():
        return []
    found = [model / name for name in _CONFIGS if (model / name).is_file()]
    if not found:
        raise LookupError(f"{model} has none of {', '.join(_CONFIGS)}")
    return found + (sorted(model.glob("**/*.py")) if code else [])


def content_name(files: Sequence[Path], root: Path, *, sample: bool = False) -> str:
    """One name for the contents of files, and for their names below `root`.

    `sample` reads a part of each only: the name says so, because such a name can be equal where
    the contents are not.
    """
    total = sum(file.stat().st_size for file in files)
    start = time.monotonic()
    if total >= LARGE_BYTES:
        LOG.info("naming %.1f GB of weights in %s by their content", total / 1e9, root)
    threads = min(THREADS_MAX, os.cpu_count() or 1, len(files)) or 1
    with ThreadPoolExecutor(threads, thread_name_prefix="keepwarm-weights") as pool:
        digests = list(pool.map(_sampled if sample else file_digest, files))
    if time.monotonic() - start > 1:
        took = time.monotonic() - start
        LOG.info("named %.1f GB of weights in %.1f s", total / 1e9, took)
    whole = hashlib.sha256()
    for file, digest in sorted(zip(files, digests, strict=True)):
        name = os.fsencode(file.relative_to(root) if file != root else Path(file.name))
        whole.update(len(name).to_bytes(4, "little") + name + bytes.fromhex(digest))
    return f"{'sampled' if sample else 'sha256'}:{whole.hexdigest()}"


def file_digest(file: Path) -> str:
    """SHA-256 of a file's content as 64 hex digits: a blob's name, a kept digest, or read now."""
    blob = file.resolve()
    named = file.is_symlink() and blob.parent.name == "blobs" and _BLOB.fullmatch(blob.name)
    # The link is made when the blob is whole: what wrote to it since was no hub.
    if named and blob.stat().st_mtime_ns <= file.lstat().st_mtime_ns:
        return blob.name
    key, folder = _key(file), _folder()
    if (known := _kept(folder, key)) is not None:
        return known
    with _alone(folder, key):
        if (known := _kept(folder, key)) is not None:
            return known
        begun_s = time.time()
        digest = _read(file)
        if _key(file) != key:
            raise IdentityError(
                f"{FIELD} cannot be determined: {file} changed while it was read; start again "
                "when it is complete",
                FIELD,
            )
        _keep(file, folder, key, digest, begun_s)
        return digest


def _kept(folder: Path | None, key: str) -> str | None:
    """What an earlier start found; a file that was cut off or overwritten names nothing."""
    if folder is None:
        return None
    try:
        text = (folder / key).read_bytes().decode("latin-1")
    except OSError:
        return None
    return text if _BLOB.fullmatch(text) else None


def _key(file: Path) -> str:
    stat = file.stat()
    facts = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _read(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb", buffering=0) as opened:
        piece = memoryview(bytearray(READ_BYTES))
        while count := opened.readinto(piece):
            digest.update(piece[:count])
    return digest.hexdigest()


def _sampled(file: Path) -> str:
    """Length, both ends and pieces spread evenly between."""
    size = file.stat().st_size
    digest = hashlib.sha256(size.to_bytes(8, "little"))
    with file.open("rb", buffering=0) as opened:
        for place in range(SAMPLES):
            opened.seek(max(0, size - SAMPLE_BYTES) * place // (SAMPLES - 1))
            digest.update(opened.read(SAMPLE_BYTES))
    return digest.hexdigest()


def _folder() -> Path | None:
    """Where digests are kept; None for a user without a home, as containers have them."""
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(home) / "keepwarm" / "weights"


@contextmanager
def _alone(folder: Path | None, key: str) -> Iterator[None]:
    """One of the processes that start together reads a file; the others wait for its digest."""
    try:
        if folder is None:
            raise FileNotFoundError
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / f".{key[:2]}.lock").open("w")
    except OSError:
        yield
        return
    with lock:
        # Some file systems of a network know no locks: then each process reads for itself.
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _keep(file: Path, folder: Path | None, key: str, digest: str, begun_s: float) -> None:
    """For the next start, if the file was old enough when its reading began at `begun_s`."""
    stat = file.stat()
    if begun_s - max(stat.st_mtime, stat.st_ctime) < YOUNG_S:
        return
    try:
        if folder is None:
            raise FileNotFoundError("this user has no home: set XDG_CACHE_HOME")
        fresh = folder / f"{key}.{os.getpid()}"
        fresh.write_text(digest, encoding="ascii")
        fresh.rename(folder / key)
        _forget_the_oldest(folder)
    except OSError as error:
        LOG.warning("the digest of %s is not kept and it is read at each start: %s", file, error)


def _forget_the_oldest(folder: Path) -> None:
    kept = [each for each in folder.iterdir() if not each.name.startswith(".")]
    for each in _oldest(kept, len(kept) - KEPT_MAX):
        each.unlink(missing_ok=True)


def _oldest(files: Iterable[Path], count: int) -> list[Path]:
    def written(file: Path) -> float:
        try:
            return file.stat().st_mtime
        except OSError:
            return 0.0

    return sorted(files, key=written)[: max(0, count)]
