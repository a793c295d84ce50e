"""Proof that the source's log and every target replica's log are equal.

Lives here: reading batches or records of a *named* replica, comparing them, and the process that has Spark do it.
- In the sidecar: `tail`, `tail_range` (checks inside a promote's fence), `messages` and `facts` (what both say).
- The process: `__main__`, `driver` (commands and events), `session` and `shipping` (Spark), `batch_run` (by batches).
- Pure: `ranges` (what is compared, cut into tasks), `verdict` (what is wrong), `judging` (verdicts from sorted rows),
  `tally` (a replica's result), `spans` (the walk over bytes), `digest`.
- In executors: `source` (the data source kafka-batches), `reader`, `columns`, `compare`; `survey` asks from the driver.

Does not live here: when a comparison is asked for and what happens on a mismatch (linker.validation).
"""
