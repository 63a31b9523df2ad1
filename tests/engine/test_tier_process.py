"""An engine that is killed leaves nothing behind, and what it stored is there for the next."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from keepwarm.testing import NodeProcess

from engine.tiers import connector

ENGINE = """
import json, sys
from engine.harness import Engine, prompt
from engine.tiers import joined, tier_of

if __name__ == "__main__":
    model, transfer = sys.argv[1], json.loads(sys.argv[2])
    engine = Engine(model, transfer)
    joined(tier_of(engine))
    answer = engine.ask(prompt(1, 1056))
    engine.settle()
    print("answer", json.dumps([answer.cached_tokens, answer.tokens]), flush=True)
    sys.stdin.read()
"""


def pools() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("vllm_offload_*")}


@pytest.fixture
def run(model: Callable[[str], Path], node: NodeProcess) -> Iterator[Callable[[], list[object]]]:
    """Starts an engine in a process of its own, asks it, and kills it."""
    children: list[subprocess.Popen[str]] = []

    def answer() -> list[object]:
        command = [sys.executable, "-c", ENGINE, str(model("tiny"))]
        child = subprocess.Popen(
            [*command, json.dumps(connector(node.address))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        children.append(child)
        assert child.stdout is not None
        line = next((line for line in child.stdout if line.startswith("answer ")), "")
        assert line, "the engine ended before it answered"
        child.kill()
        child.wait()
        found: list[object] = json.loads(line.removeprefix("answer "))
        return found

    yield answer
    for child in children:
        child.kill()
        child.communicate()


def test_killed_engines_leave_no_pool_and_their_blocks(
    run: Callable[[], list[object]],
) -> None:
    before = pools()
    cold = run()
    assert pools() == before
    warm = run()
    assert pools() == before
    assert (cold[0], warm[0]) == (0, 1056)
    assert cold[1] == warm[1]
