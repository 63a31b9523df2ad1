"""What repeats in an operator's own traffic, and what a memory of a given size would save.

Requests come in as `Batch`es: block ids, token counts, arrivals; never text (`trace.py`). Readers
make them of logs (`readers/`), everything else takes them. May import: layout, the client, the
native core.
"""
