"""The demo with a real engine: two vLLM replicas, one node, and whether restoring wins.

plan.py makes the conversations, fleet.py runs node and replicas, run.py asks and writes down,
accounts.py reads where each token came from, summary.py judges, report.py and page.py show.
Imports `engines`, `testing` and the public API; nothing but the command line imports it.
"""

from keepwarm.demo.vllm.fleet import Fleet, VllmFleet
from keepwarm.demo.vllm.plan import Sizes
from keepwarm.demo.vllm.run import Record, run
from keepwarm.demo.vllm.summary import Summary, summarise

__all__ = ["Fleet", "Record", "Sizes", "Summary", "VllmFleet", "run", "summarise"]
