"""What operators look at: the catalogue of metrics is the one source of their names.

May import `keepwarm.errors` alone.
"""
