"""A node that dies, hangs, lies or comes back empty, in the middle of concurrent requests.

All of them complete with the same tokens, the engine logs no exception of ours, and when the node
is well again hits come back by themselves.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from operator import attrgetter

import pytest
from keepwarm.connectors.vllm.guard import faults
from keepwarm.testing import FaultProxy, NodeProcess, Towards
from nodes import short_folder

from engine.direct import Direct, connector
from engine.harness import Engine, EngineLog, prompt

PROMPTS = 12
TOKENS = 400


@pytest.fixture(scope="module")
def proxy(node: NodeProcess) -> Iterator[FaultProxy]:
    # Descriptors do not pass a proxy, so bytes travel by the socket here.
    with short_folder() as folder, FaultProxy(node.address, f"unix:{folder / 'p.sock'}") as between:
        yield between


@pytest.fixture(scope="module")
def direct(make_engine: Callable[..., Engine], proxy: FaultProxy) -> Direct:
    found = Direct(
        make_engine("micro", connector(proxy.address, transport="unix", load_deadline_s=0.3))
    )
    found.joined()
    return found


class Nodes:
    """What can go wrong, and how it is made good again."""

    def __init__(self, node: NodeProcess, proxy: FaultProxy) -> None:
        self.node = node
        self.proxy = proxy

    def killed(self) -> None:
        self.node.kill()

    def stopped(self) -> None:
        os.kill(self.node.pid, signal.SIGSTOP)

    def restarted_empty(self) -> None:
        self.node.kill()
        self.node.start()
        self.node.wait_ready()

    def corrupting(self) -> None:
        self.proxy.set(Towards.CLIENT, corrupt_every=20_000)

    def slow(self) -> None:
        self.proxy.set(Towards.CLIENT, delay_s=0.4)

    def cut_off(self) -> None:
        self.proxy.drop()

    def healed(self, fault: str) -> None:
        if fault == "killed":
            self.node.start()
            self.node.wait_ready()
        elif fault == "stopped":
            os.kill(self.node.pid, signal.SIGCONT)
        self.proxy.clear()


@pytest.mark.parametrize(
    "fault", ["killed", "stopped", "restarted_empty", "corrupting", "slow", "cut_off"]
)
def test_requests_do_not_notice(
    direct: Direct, node: NodeProcess, proxy: FaultProxy, fault: str
) -> None:
    engine, nodes = direct.engine, Nodes(node, proxy)
    asked = [prompt(100 + at, TOKENS + 40 * at) for at in range(PROMPTS)]
    for each in asked:
        engine.ask(each, max_tokens=4)
    own = [engine.ask(each, max_tokens=4).tokens for each in asked]
    direct.stored()
    engine.forget()
    names = [engine.add(each, max_tokens=4) for each in asked]
    engine.until(lambda: bool(direct.scheduler._loads), "a load is under way")
    getattr(nodes, fault)()
    try:
        answers = engine.finish(names)
        assert [answers[name].tokens for name in names] == own
        # And those that come while it is like that.
        later = engine.ask(asked[0], max_tokens=4)
        assert later.tokens == own[0]
        engine.settle()
    finally:
        nodes.healed(fault)
    engine.until(lambda: hits_again(direct), "hits come back", limit_s=60.0)
    direct.at_rest()


@pytest.mark.parametrize("place", ["scheduler._load", "scheduler._orders", "worker._copier.mark"])
def test_requests_do_not_notice_what_fails_in_our_own_code(
    direct: Direct, monkeypatch: pytest.MonkeyPatch, engine_log: EngineLog, place: str
) -> None:
    engine, asked = direct.engine, prompt(8, TOKENS)
    engine.ask(asked)
    own = engine.ask(asked)
    direct.stored()
    engine.forget()

    def fails(*_: object) -> None:
        raise RuntimeError("of ours")

    *way, last = place.split(".")
    with monkeypatch.context() as patched:
        patched.setattr(attrgetter(".".join(way))(direct), last, fails)
        assert engine.ask(asked).tokens == own.tokens
    assert faults
    faults.clear()
    engine_log.clear()
    direct.at_rest()


def hits_again(direct: Direct) -> bool:
    """Stores a prompt, forgets it on the device, and asks again."""
    asked = prompt(7, 100)
    direct.engine.ask(asked, max_tokens=1)
    direct.stored()
    direct.engine.forget()
    return direct.engine.ask(asked, max_tokens=1).cached_tokens == 96
