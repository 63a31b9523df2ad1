"""Replays a trace, open loop: against live endpoints, or against a bare node with real bytes.

    schedule    when each request is due, from the trace alone
    prompts, bodies         what is sent: tokens made of block ids, or a logged text
    asking, sending         one request; all of them at their times
    tally, histograms       what came of them
    compare     two targets, request by request
    endpoints   the whole, as one JSON object
    node, node_client       the same against a node, and the process that is one of its clients

May import the public client and `keepwarm.testing`; aiohttp and hdrhistogram where they are used.
"""

from keepwarm.workload.replay.bodies import Limits, TextBodies, TokenBodies
from keepwarm.workload.replay.endpoints import SCHEMA, Plan, model_of, replay
from keepwarm.workload.replay.prompts import Vocabulary
from keepwarm.workload.replay.schedule import Arrival, Pace, of_log, of_trace
from keepwarm.workload.replay.sending import Sending
from keepwarm.workload.replay.targets import Order, Router, Target, parse_headers, parse_targets

__all__ = [
    "SCHEMA",
    "Arrival",
    "Limits",
    "Order",
    "Pace",
    "Plan",
    "Router",
    "Sending",
    "Target",
    "TextBodies",
    "TokenBodies",
    "Vocabulary",
    "model_of",
    "of_log",
    "of_trace",
    "parse_headers",
    "parse_targets",
    "replay",
]
