"""Live producers and consumers, old data, and checks that nothing was lost, doubled or reordered.

- `checker`: from a history and the final logs to what went wrong, with evidence; a pure function
- `history`: the clients' acts and observations: the only input of the checker besides the final logs
- `inspection`: looking at both clusters afterwards: who leads what, what the logs hold, whether replicas are equal
- `live_consumers`: consumers that run all the time, of several libraries; what they read goes into one history
- `live_producers`: idempotent producers that run all the time, of several libraries, all into one history
- `log_compare`: whether a target replica holds the source's log: batch by batch, or by records where logs are
  compacted
- `replica_log`: a replica as it lies on a broker's disk: its `.log` segments as batches, records and log start offset
- `source_data`: data of the source cluster before anything is linked: one topic for each thing that real topics
  hold
"""
