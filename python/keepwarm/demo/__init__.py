"""The demo: a node at work on coding-agent sessions, and the proof that everything adds up.

plan.py decides what is asked, run.py runs the processes, replica.py is one of them, ledger.py
counts tokens, summary.py judges, report.py and chart.py show. Needs numpy. Imports the public API
and `keepwarm.testing` only; nothing but the command line imports it.
"""

from keepwarm.demo.plan import DemoConfig, Plan, make
from keepwarm.demo.run import Record, run
from keepwarm.demo.summary import Summary, summarise
from keepwarm.testing.node import ProcessError

__all__ = ["DemoConfig", "Plan", "ProcessError", "Record", "Summary", "make", "run", "summarise"]
