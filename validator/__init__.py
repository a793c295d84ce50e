"""Proof that the source's log and every target replica's log are equal.

Lives here: reading batches or records of a *named* replica, comparing them, and the process that has Spark do it.
- In the sidecar: `tail`, `tail_range` (checks inside a promote's fence); `messages`, `mode` and `facts` (what both say).
- The process: `__main__`, `driver` (commands and events), `session` and `shipping` (Spark), `evidence/` (what it writes).
- By batches: `batch_run` one run, `survey` what there is (`endpoint`, `fetching`: asking a broker), `ranges` what is
  compared, cut into tasks, `compare` the Spark jobs. In executors `side_by_side` and `matching` settle what is alike,
  `source` (the data source kafka-batches) reads the rest, both by `reader`, `reading`, `spans` (the walk over bytes) and
  `columns`. Pure: `judging` (verdicts from sorted rows), `verdict` (what is wrong), `tally` (a replica's result),
  `digest`.
- By records: `record_run` one run, `records` what is compared, `kafka_source` Spark's own connector, `record_logs` and
  `record_frames` the logs and their comparison, `record_explain` what log cleaners explain of it (`record_commits`: the
  outcome of transactions, `record_second_look`: whole logs), `record_tally` a replica's result. `cleaner_bounds`, for both:
  where no cleaner can have been.

Does not live here: when a comparison is asked for and what happens on a mismatch (linker.validation).
"""
