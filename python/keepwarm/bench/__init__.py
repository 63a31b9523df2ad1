"""What `keepwarm bench` measures: Keepwarm against what this machine does without it.

- `figures.py`: the catalogue: each figure's name, meaning, floor and goal.
- `pairs.py`: interleaved rounds of a limit and of ours, and the ratios that follow.
- `limits.py`: the bare loops: memory, sockets, rustls, a raw file; `bare.py` is their server.
- `nodes.py`: a real node in a process of its own, filled, and the CPU time it takes.
- `local.py`, `network.py`, `tables.py`, `flash.py`, `peers.py`: one group of figures each.
- `measure.py` measures; `report.py` prints.
"""

from keepwarm.bench.figures import FIGURES, Figure
from keepwarm.bench.measure import names, run

__all__ = ["FIGURES", "Figure", "names", "run"]
