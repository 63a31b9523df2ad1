"""For those who test what they build on Keepwarm: a fake memory, faults, traces, verifiable blocks.

    FakeMemory    no node, no waiting, faults at the flick of a switch; verified by `conformance`
    NodeProcess   a real node as a child process, to be killed and started again
    FakeEngine    an OpenAI-compatible endpoint without a model: prefix cache, prefill rate, faults
    virtual_time  an event loop whose clock jumps, with real sockets
    FaultProxy    sits between a real client and a real node and spoils what passes
    conformance   what every memory must do, as checks to call
    traces        recorded requests; `synthetic` makes some up and says so
    conversations whole conversations with their text, as requests
    blocks        block bytes that can be computed again, so that every byte can be verified

Needs numpy. May import the package's public names; nothing outside tests and the demo imports it.
"""

from keepwarm.testing import blocks, conformance, conversations, synthetic, traces, virtual_time
from keepwarm.testing.fake import (
    FakeLookup,
    FakeMemory,
    FakeNode,
    FakeSpace,
    FaultSwitches,
    ManualClock,
)
from keepwarm.testing.fake_engine import EngineFaults, FakeEngine
from keepwarm.testing.faults import FaultProxy, Faults, Side, Towards
from keepwarm.testing.namespaces import namespace
from keepwarm.testing.node import NodeProcess
from keepwarm.testing.protocols import LookupLike, MemoryLike, SpaceLike
from keepwarm.testing.traces import Request, Trace
from keepwarm.testing.waiting import eventually

__all__ = [
    "EngineFaults",
    "FakeEngine",
    "FakeLookup",
    "FakeMemory",
    "FakeNode",
    "FakeSpace",
    "FaultProxy",
    "FaultSwitches",
    "Faults",
    "LookupLike",
    "ManualClock",
    "MemoryLike",
    "NodeProcess",
    "Request",
    "Side",
    "SpaceLike",
    "Towards",
    "Trace",
    "blocks",
    "conformance",
    "conversations",
    "eventually",
    "namespace",
    "synthetic",
    "traces",
    "virtual_time",
]
