"""Logs of requests, in whatever form they come, as traces: one file per format.

    open_trace(paths) -> TraceSource      block ids, counts, arrivals: what is simulated and sized
    open_requests(paths) -> LoggedRequests with their text, in memory only: for lint and replay

The format is told from the content. Whatever cannot be read is counted with its place, or refused
with the reason. `opening` gives bytes and lines, `rows` makes batches; may import workload.trace,
workload.hashing and layout.
"""

from keepwarm.workload.readers.detect import Format
from keepwarm.workload.readers.trace_of import RequestLog, open_requests, open_trace

__all__ = ["Format", "RequestLog", "open_requests", "open_trace"]
