"""Chaos on real brokers: random faults while topics are mirrored, written to, read and promoted by one sidecar or a
fleet of three, failed over because the source died for good, or switched to the target and back; judged by a checker.

`python -m tests.chaos --runs 3`. A run's seed is its whole plan (`--plan` prints it); what the faults meet depends on
timing.

File map: `plan` decides what a run does (`switch_plan` one that switches), `stage` the clusters that runs share, `fleet`
a run's sidecars, `proxy` and `tap` the network between all of them (`surgeon` cuts single produces, for tests/real),
`faults` strikes, `transactions` the applications that write in transactions, `promotes` promotes, fails over and watches,
`switches` switches, `mirrors` makes and removes a run's link, `run` puts them together (`switch_run` with switches),
`result` is what comes of it, `evidence` collects final logs (`switch_evidence` of both clusters), `checker` judges
(`failed_over` what a failover may cost, `committed` transactions), `report` sums up, `__main__` goes through many runs.
"""
