"""KV between vLLM's blocks and Keepwarm, without vLLM's host pool in between.

    scheduler.py   what to load and to store, and where each prompt token came from   engine core
    requests.py    one request as the scheduler side sees it
    metadata.py    what goes to the workers with a step, and what comes back
    worker.py      moves what the scheduler side ordered                              each rank
    landing.py     copies between the engine's blocks and staging: host, CUDA
    layout.py      where in the engine's memory a block is; refuses what it does not know
    connector.py   the class that vLLM makes, once on each side

Stores read the engine's blocks while it goes on, without holding them: blocks that are filled do
not change, and before a block is written again its store is fenced (`Scheduler.orders`). So no
block waits for a node, and a preemption or an abort needs no word from us.
"""

from keepwarm.connectors.vllm.direct.connector import KeepwarmConnector

__all__ = ["KeepwarmConnector"]
