"""What is wrong with a memory, and the one thing to change first.

`checks.py` is one check's answer and the order in which they matter. Each group of checks is a file
of its own, given what it judges: `reach.py` (is a node there, and does it take us in), `paths.py`
(bytes over every path, read back and timed), `figures.py` and `flash.py` (what the node says about
itself), `host.py` (the machine under it). `node.py` asks a node and puts them together.
`replica.py` judges one running engine by its figures, `vllm.py` asks several and probes them.

May import the client, config, identity, machine, errors, and engines for asking one over HTTP.
"""
