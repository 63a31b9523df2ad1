"""What operators look at: `metrics.py` is the one source of the metrics' names, `doctor/` finds out
what is wrong.

The catalogue imports `keepwarm.errors` alone; the doctor is a client of nodes.
"""
