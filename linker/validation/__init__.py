"""The validator's work inside the sidecar; only the link controller has it done.

- `child`: A child with children of its own: what it says is kept, and it ends with all that it started
- `errors`: what goes wrong with the validator, as whoever asked for its work hears of it
- `evidence`: after a promote: the last run, with the exact ends, and what is left of it all as a page, JSON and
  Parquet
- `needs`: what the validator needs of the machine that it runs on
- `planner`: which replicas are due, and from which offset on: pure functions of the link state and of the target's
  metadata
- `process`: the validator process under control: started when it is needed, ended when it is idle, spoken to in JSON
  lines
- `promote`: what a promote needs of the validator (linker.promote.ports.Validation): at work on its partitions until
  they are proved almost to their end, and out of the way behind the fence
- `result_book`: what this process has seen of each replica: kept for the evidence, and gone with the process
- `runner`: the validation of one link, on the link controller only
- `runs`: one run: what is known of it while it goes on, and its results written into the link state as they come
- `samples`: looks at the partitions while they are validated, for the charts of the evidence
- `turns`: who has the validator: one run at a time, the more urgent first, and a less urgent one makes room
- `validator`: the one validator of a sidecar: its process, who has it, and the target's side of every run
"""
