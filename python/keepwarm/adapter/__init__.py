"""What all connectors share, and no engine in it.

    settings     what an operator may say
    session      one namespace on one memory, found and found again in the background
    lookups      questions about prompts, answered by a thread; breaker closes it to silent nodes
    transfers    loads and stores on own threads
    failed       keys that nobody is to be promised yet
    prober       bandwidth, measured without a request
    accounting   each prompt token exactly once; reasons is the closed list of why
    figures      the catalogue of a connector's metrics
    threads      daemon threads, forks, and log lines that are no flood

In an engine's process nothing here raises, blocks or leaks: what goes wrong becomes a miss with a
reason. The exception is construction, which refuses settings and identities that cannot be right.
May import the client's public names; a connector imports this and never the other way round.
"""
