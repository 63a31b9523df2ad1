"""Connectors: one folder an engine, and the only place where that engine is imported.

What all of them share (settings, lookups, transfers, accounting) is in `keepwarm.adapter` and knows
no engine. `import keepwarm` imports nothing from here.
"""
