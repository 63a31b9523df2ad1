"""Starting and ending an engine's family of processes, with a family that has no engine in it."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from keepwarm.engines.asking import EngineError
from keepwarm.engines.replica import Replica, ReplicaConfig
from keepwarm.testing import eventually

# Where `python -m` looks first is the folder that it is started in: this is its vllm. The child
# hears no SIGTERM and holds a file in /dev/shm, as a worker does that hangs.
FAMILY = '''
import http.server, mmap, os, signal, subprocess, sys

CHILD = """
import mmap, os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
held = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(held, 4096)
kept = mmap.mmap(held, 4096)
print("here", flush=True)
signal.pause()
"""

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if any(each.endswith("never") for each in sys.argv) else 200)
        self.end_headers()
    def log_message(self, *_):
        pass

if "--max-model-len" in sys.argv and sys.argv[sys.argv.index("--max-model-len") + 1] == "1":
    raise ValueError("one token is too few")
shared = f"/dev/shm/keepwarm-test-{os.getpid()}"
child = subprocess.Popen([sys.executable, "-c", CHILD, shared], stdout=subprocess.PIPE)
child.stdout.readline()
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
'''
STARTER = """
import sys
from pathlib import Path
from keepwarm.engines.replica import Replica, ReplicaConfig

folder = Path(sys.argv[1])
config = ReplicaConfig(python=Path(sys.executable), model=folder)
replica = Replica("A", config, folder)
replica.start()
replica.wait_ready()
print(*replica.processes(), flush=True)
sys.stdin.read()
"""


def shared_of(leader: int) -> Path:
    return Path(f"/dev/shm/keepwarm-test-{leader}")


def is_alive(process: int) -> bool:
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


@pytest.fixture
def home(folder: Path) -> Path:
    package = folder / "modules/vllm/entrypoints/cli"
    package.mkdir(parents=True)
    (package / "main.py").write_text(FAMILY)
    return folder


@pytest.fixture
def replica(home: Path) -> Iterator[Replica]:
    made = Replica("A", ReplicaConfig(python=Path(sys.executable), model=home), home)
    yield made
    made.kill()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_the_family_ends_and_leaves_nothing(
    replica: Replica, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that does not hear SIGTERM, too."""
    monkeypatch.setattr("keepwarm.engines.replica.ORPHANS_S_MAX", 0.2)
    replica.start()
    replica.wait_ready()
    family = replica.processes()
    assert len(family) == 2
    assert shared_of(min(family)).exists()
    replica.stop() if how == "stop" else replica.kill()
    assert not [process for process in family if is_alive(process)]
    assert replica.processes() == []
    assert not shared_of(min(family)).exists()


def test_it_starts_again_at_another_port(replica: Replica) -> None:
    ports = []
    for _ in range(2):
        replica.start()
        replica.wait_ready()
        ports.append(replica.client.url)
        replica.kill()
        assert not replica.client.is_well()
    assert len(set(ports)) == 2


def test_what_others_share_stays(replica: Replica) -> None:
    """A file that a process outside of the family has mapped as well is not ours to remove."""
    replica.start()
    replica.wait_ready()
    shared = shared_of(min(replica.processes()))
    with shared.open("r+b") as opened:
        mapped = mmap.mmap(opened.fileno(), 4096)
        replica.kill()
        assert shared.exists()
        mapped.close()
    shared.unlink()


def test_its_last_words_say_why(home: Path) -> None:
    config = ReplicaConfig(python=Path(sys.executable), model=home, context_tokens=1)
    replica = Replica("B", config, home)
    replica.start()
    with pytest.raises(EngineError, match=r"replica B ended by itself(.|\n)*one token is too few"):
        replica.wait_ready()
    replica.stop()


def test_patience_ends(replica: Replica) -> None:
    replica.start()
    with pytest.raises(EngineError, match="did not answer within 0 s"):
        replica.wait_ready(patience_s=0.0)


def test_it_ends_with_whoever_started_it(home: Path) -> None:
    """Even if that was killed: the kernel tells the first of the family."""
    command = [sys.executable, "-c", STARTER, str(home)]
    starter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert starter.stdin is not None
    assert starter.stdout is not None
    leader, child = sorted(int(each) for each in starter.stdout.readline().split())
    starter.kill()
    starter.wait()
    starter.stdin.close()
    starter.stdout.close()
    eventually(lambda: not is_alive(leader), "the leader has ended")
    # A real engine's children end with it; this one does not, and is for us to end.
    os.kill(child, signal.SIGKILL)
    eventually(lambda: not is_alive(child), "the child has ended")
    shared_of(leader).unlink()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_the_demo_cleans_up_when_it_is_told_to_end(home: Path, sent: signal.Signals) -> None:
    """While it waits for engines that never get ready."""
    python, family, model = home / "python", home / "family.py", home / "never"
    family.write_text(FAMILY)
    model.mkdir()
    python.write_text(
        f'#!/bin/sh\ncase "$1" in *leash.py) exec {sys.executable} "$@";; '
        f'*) echo $$ >> {home}/leaders; exec {sys.executable} {family} "$@";; esac\n'
    )
    python.chmod(0o755)
    command = [
        *(sys.executable, "-m", "keepwarm.cli", "demo", "vllm", "--out", str(home / "out")),
        *("--engine-python", str(python), "--model", str(model)),
    ]
    environment = {**os.environ, "TMPDIR": str(home)}
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    def leaders() -> list[int]:
        file = home / "leaders"
        return [int(each) for each in file.read_text().split()] if file.exists() else []

    eventually(lambda: len(leaders()) == 2, "both replicas are starting", patience_s=30.0)
    eventually(lambda: all(shared_of(each).exists() for each in leaders()), "both have children")
    demo.send_signal(sent)
    said, _ = demo.communicate(timeout=60)
    assert demo.returncode == (130 if sent is signal.SIGINT else 128 + sent), said
    assert not any(is_alive(each) or shared_of(each).exists() for each in leaders())
    assert not list(home.glob("keepwarm-demo-*"))
