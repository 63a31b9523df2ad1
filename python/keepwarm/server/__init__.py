"""What `keepwarm serve` runs: a store, its server on a socket, and admin HTTP on loopback.

`node.py` is the life of a node, `running.py` the thread that waits for signals, `reload.py` what
SIGHUP changes, `log.py` its log, `notify.py` what the service manager hears, `admin.py` its HTTP
pages, `connections.py` who may hold those open, `metrics.py` the metrics page. May import config,
errors, machine, outcomes, ops and the native core.
"""
