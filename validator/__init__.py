"""Proof that the source's log and every target replica's log are equal.

- `__main__`: `python -m validator`
- `batch_run`: one run in mode `batches`, from the plan to the last Checked: survey, groups of ranges, tallies
- `compare/`: comparing logs batch by batch, and the verdict
- `driver`: the validator process: commands in, events out, one Spark session, one run at a time
- `evidence/`: the evidence of a promote: page, JSON and Parquet
- `messages`: the messages to a validator process (stdin) and from it (stdout): one JSON object per line
- `mode`: how two logs are compared
- `read/`: reading batches and records of a named replica, in Spark's executors
- `records/`: comparing logs record by record, where a log cleaner has been
"""
