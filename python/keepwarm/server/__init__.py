"""What `keepwarm serve` runs: a store, its server on a socket, and admin HTTP on loopback.

`node.py` is the life of a node, `admin.py` its HTTP pages, `connections.py` who may hold those
open, `metrics.py` the metrics page. May import config, errors, outcomes, ops and the native core.
"""
