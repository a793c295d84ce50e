"""A switch: link brokers take topics over in the cluster whose brokers lead them, and give them back.

Nothing here says source or target: the cluster is the one that is to be left, whichever of the two that is.

- `export_file`: records that are taken out of a log, as batches and as JSON lines
- `exporter`: follows a source that is restored after a failover, and exports what it has beyond
- `fence`: the take-over as the means of a promote to close its source
- `giving_back`: its own brokers lead a topic again, its configs are as before, and nothing of it is written down
- `log_tail`: reads a broker's own log to its very end, with a check of leader epochs
- `owner`: the cluster that is left: its metadata log, and the requests of one kind for many partitions
- `owner_steps`: requests and waits that taking over and giving back share
- `records`: the commits of a take-over
- `rescue`: gives back what link brokers lead since all others died, whoever had begun it
- `sync_replicas`: keeps link brokers among the in-sync replicas of the topics that are to be switched
- `take_over`: the steps of a take-over
"""
