"""The validator's work inside the sidecar; only the link controller has it done.

- `child`: a child process that has children: its output is kept, and it ends with all that it started
- `errors`: failures of the validator, as its callers see them
- `evidence`: after a promote: the last run, up to the exact ends, and the evidence as a page, JSON and Parquet
- `lost_copies`: forgets what was proved of copies that are gone: their watermarks are another log's
- `needs`: requirements of the validator on its machine
- `planner`: which replicas are due, and from which offset on: pure functions of the link state and of the target's
  metadata
- `process`: the validator process under control: started when it is needed, ended when it is idle, spoken to in JSON
  lines
- `promote`: the validator's part in a promote: its partitions are proved almost to their end before the fence
- `promoted`: the partitions that a promote has handed over, as the link state and the target show them now
- `result_book`: results per replica for the evidence, in memory only
- `runner`: the validation of one link, on the link controller only
- `runs`: one run: its progress, and its results written into the link state as they come
- `samples`: looks at the partitions while they are validated, for the charts of the evidence
- `standstill`: whether a run gets any further
- `switched`: the proof of a switch: of the replicas in the cluster that was left
- `turns`: the queue for the validator: one run at a time; a less urgent one makes room
- `validator`: the one validator of a sidecar: its process, who has it, and the target's side of every run
"""
