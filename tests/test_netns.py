"""Three nodes in network namespaces under load, while the network between does what networks do.

Delay, loss, a partition, a cut of one direction, a node killed and back: no wrong byte, no call
past its deadline, and hits come back without a storm.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keepwarm
import networks
import pytest
from keepwarm.testing import NodeProcess

SCALE = int(os.environ.get("KEEPWARM_TEST_SCALE", "1"))
SEED = os.environ.get("KEEPWARM_TEST_SEED", "20261201")
DEADLINE_S = 0.25
LATE_P99_S = 0.05
LATE_MAX_S = 1.0
GRACE_S = 0.5
RAMP_S = 2.0
THREADS = 2
NODES = 3
FLEET_LOAD = str(Path(__file__).with_name("fleet_load.py"))


@pytest.fixture(scope="module")
def network() -> Iterator[networks.Network]:
    reason = networks.why_not()
    if reason is not None:
        pytest.skip(reason)
    made = networks.Network(NODES)
    yield made
    made.close()


@dataclass
class Fleet:
    """Nodes, each reached through its namespace alone, and a client that works."""

    network: networks.Network
    nodes: list[NodeProcess]
    client: subprocess.Popen[str]
    pause: threading.Event
    phases: dict[str, dict[str, Any]]

    def phase(self, name: str, seconds: float) -> dict[str, Any]:
        """Lets the client work for a time; what it saw."""
        rates = [self.rate(node, seconds) for node in range(NODES)]
        threads = [threading.Thread(target=rate.run) for rate in rates]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seen = self.ask()
        seen["rates"] = [rate.per_s for rate in rates]
        self.phases[name] = seen
        total = sum(seen["outcomes"].values())
        seen["hits"] = seen["outcomes"].get("ok", 0) / max(total, 1)
        print(
            f"{name}: {seen['calls']} calls, hits {seen['hits']:.3f}, late p99 "
            f"{seen['late_p99_s']:+.3f} s, max {seen['late_max_s']:+.3f} s, {seen['outcomes']}, "
            f"requests/s by node {[max(rate, default=0) for rate in seen['rates']]}, "
            f"{list(seen['nodes'].values())}, load {os.getloadavg()[0]:.1f}"
        )
        return seen

    def ask(self) -> dict[str, Any]:
        """What the client has seen since the last time."""
        assert self.client.stdin is not None
        assert self.client.stdout is not None
        self.client.stdin.write("\n")
        self.client.stdin.flush()
        line = self.client.stdout.readline()
        assert line, "the client ended by itself"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def rate(self, node: int, seconds: float) -> Rate:
        """Asks the node itself how much it is asked."""
        return Rate(self.nodes[node], time.monotonic() + seconds, self.pause)


class Rate:
    """Requests a second of one node, in windows; 0 while it is not there."""

    WINDOW_S = 0.25

    def __init__(self, node: NodeProcess, until: float, pause: threading.Event) -> None:
        self._node, self._until, self._pause = node, until, pause
        self.per_s: list[int] = []

    def run(self) -> None:
        with keepwarm.connect(self._node.address, connections_max=1) as memory:
            before = None
            while time.monotonic() < self._until:
                at, count = time.monotonic(), self._count(memory)
                if before is not None and None not in (count, before[1]):
                    self.per_s.append(round(max(0, count - before[1]) / (at - before[0])))
                before = (at, count)
                self._pause.wait(self.WINDOW_S)

    def _count(self, memory: keepwarm.Memory) -> Any:
        try:
            requests = memory.stat()["server"]["requests"]
        except keepwarm.NodeError:
            return None
        return sum(requests[name] for name in ("lookup", "get", "put", "touch", "release"))


@pytest.fixture
def fleet(network: networks.Network, tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        nodes, addresses = [], []
        for number in range(1, NODES + 1):
            folder = tmp_path / str(number)
            folder.mkdir()
            node = stack.enter_context(NodeProcess(folder, 32 << 20))
            path = node.address.removeprefix("unix:")
            where = (f"10.77.{number}.2", str(networks.PORT))
            relay = network.run(
                network.of(number), sys.executable, networks.__file__, "relay", *where, path
            )
            stack.enter_context(relay)
            stack.callback(relay.kill)
            nodes.append(node)
            addresses.append(f"tcp://{where[0]}:{where[1]}")
        settings = [DEADLINE_S, THREADS, SEED, GRACE_S, RAMP_S]
        client = network.run(
            network.client,
            *(sys.executable, FLEET_LOAD, ",".join(addresses), *map(str, settings)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        stack.enter_context(client)
        stack.callback(client.kill)
        yield Fleet(network, nodes, client, threading.Event(), {})


def test_whatever_the_network_does(fleet: Fleet) -> None:
    print(f"KEEPWARM_TEST_SEED={SEED}, load {os.getloadavg()}")
    fleet.ask()  # it works
    fleet.phase("filling", 1.0)
    steady = fleet.phase("steady", 1.0)
    assert steady["hits"] > 0.95
    for _ in range(SCALE):
        the_way_is_bad(fleet)
        a_node_dies(fleet)
    for name, seen in fleet.phases.items():
        assert not seen["wrong"], f"{name}: {seen['wrong'][:3]}"
        assert seen["late_max_s"] <= LATE_MAX_S, name
        assert seen["late_p99_s"] <= LATE_P99_S, name
        assert seen["calls"] > 20, f"{name}: the others went on"


def the_way_is_bad(fleet: Fleet) -> None:
    network = fleet.network
    network.way(1, delay_s=0.01)
    assert fleet.phase("10 ms each way to node 1", 1.0)["hits"] > 0.8
    network.way(1, delay_s=0.005, loss=0.02)
    # A lost segment is sent again after 200 ms: most of a deadline. Some calls get through.
    assert fleet.phase("2 % loss", 1.0)["hits"] > 0
    network.way(1)
    network.partition(2)
    fleet.phase("partition of node 2", GRACE_S + 1.0)
    moved = fleet.phase("and its runs have moved", 0.75)
    assert moved["hits"] > 0.9, "the others have them"
    assert "out" in moved["nodes"].values()
    network.heal(2)
    network.cut_answers(3)
    fleet.phase("node 3 hears and is not heard", GRACE_S + 1.0)
    network.mend_answers(3)
    # Their lost packets are sent again after a while, and a call after that finds them.
    fleet.phase("mending", 2.0)
    assert fleet.phase("mended", 0.75)["hits"] > 0.9


def share(seen: dict[str, Any], node: int) -> list[float]:
    """The part of all requests that went to a node, by window.

    A client in a closed loop asks as fast as its machine lets it, so that requests a second say
    more of the machine than of a storm; what part of them one node gets does not.
    """
    windows = zip(*seen["rates"], strict=False)
    return [rates[node] / sum(rates) for rates in windows if sum(rates)]


def a_node_dies(fleet: Fleet) -> None:
    node = fleet.nodes[0]
    node.kill()
    fleet.phase("node 1 is dead", GRACE_S + 0.75)
    node.start()
    node.wait_ready()
    # Its clients ask for it every two seconds at the least.
    back = fleet.phase("node 1 is back", 2.0 + RAMP_S / 2)
    after = fleet.phase("and has its share", 0.75)
    assert after["hits"] > 0.9, "hits recover"
    rejoining, settled = share(back, 0), max(share(after, 0))
    print(
        f"requests/s of node 1 on rejoin, each 0.25 s: {back['rates'][0]}; its part of all: "
        f"{[f'{part:.2f}' for part in rejoining]}, settled at {settled:.2f}"
    )
    assert any(rejoining), "it is asked again"
    assert max(rejoining) <= 1.5 * settled, "no storm"
