"""Benchmarks beside Kafka's own follower and MirrorMaker 2; every figure is a ratio within one run.

- `catch_up`: catching up while clients write: what a gigabyte that is copied costs 20 MB/s of live produce beside it
- `cluster`: A Kafka cluster of the benchmark: brokers as in production, and a client of our own wire protocol beside
  it
- `correctness`: a fast copy that is no copy is worth nothing: the benchmark's own topics, compared after they were
  measured
- `followers`: several followers: three copies beside Kafka's own three copies; the source is read once for all of
  them, and one that stalls costs no memory
- `forward`: the Router's throughput: 64 kB batches produced through the sidecar, beside the same produced straight to
  the source and the same through a process that only passes bytes on (relay.py)
- `forward_client`: kafka's own producer through the sidecar, and straight to the source: `kafka-producer-perf-test`,
  1 kB records in 128 kB batches, 4 partitions
- `groups`: thousands of groups on real coordinators, none of them promoted: every second some of them, or all, commit
  at the source, and the link brings that over
- `growth`: how fast a follower's log grows: from the first byte in its files to the last, looked at from outside
- `guard`: the regression guard: a ratio that was recorded and has fallen by a quarter fails the benchmark
- `latency`: the added latency of a forwarded write: librdkafka at a steady rate through the sidecar, beside straight to
  the source
- `load`: fills topics quickly: the same pre-built record batch, sent again and again over raw Produce requests
- `many_partitions`: a thousand partitions, mostly idle: how soon the link has them, what they cost when nothing
  happens, and how far behind a follower is when fifty of them are written to
- `many_topics`: thousands of topics with one partition each: how soon a link has them, and what they cost when nothing
  happens
- `memory`: resident memory of a process over a stretch of time, and how many bytes it read
- `micro/`: single functions of the hot path, without a broker
- `mirror_maker`: mirrorMaker 2 of the same Kafka version as a process beside the link, with the configuration that
  lies beside this file
- `paced`: a producer at a steady rate over raw Produce requests, which notes how long each answer took
- `page`: the report as one HTML file: goals, figures and plots of every case
- `page_cache`: frees the page cache that a finished round has filled
- `perf_tools`: kafka's own `kafka-consumer-perf-test` and `kafka-producer-perf-test`: how fast one client of Kafka's
  reads and writes
- `producer_process`: a live producer in a process of its own, as an application has one: it waits for nobody else's
  interpreter lock
- `promote`: how long a producer waits around a promote: the largest gap between two of its acknowledgements
- `relay`: a process that only passes bytes on, as a yardstick: what one hop more costs on this machine, whoever makes
  it
- `replication`: replication to one stock follower: through the link, beside Kafka's own follower with the same bytes
- `report`: report.json and the table under it: where it was measured, what came out, which goals are met
- `results`: results of cases: raw rounds, figures made of them, and goals that a figure meets or misses
- `reverse_ways`: the ways of a topic that was switched, beside those of one that was not: writes that are forwarded, and
  their copies
- `run`: `python -m lab.bench.run --out DIR [--quick] [--case NAME ...]`: the whole benchmark on real clusters
- `settings`: how much is measured: a full run, or a quick one that only shows that everything works
- `soak`: a day in small: half an hour of writes, copies, clients that come and go, mirrors that are made, paused and
  deleted
- `stage`: the stage of a case: a filled source cluster, a target cluster beside it, and the sidecar between them
- `stalls`: memory where nothing moves: a source that stalls in the middle of a copy, and thousands of clients that
  only hold a connection
- `switch`: how long a producer waits when the owner of its topics is switched, there and back, at either cluster's
  bootstrap
- `turns`: rounds of the sides that are compared, in turn
- `validate`: validation by Spark: batches beside records, beside Kafka's own consumer, and how its cost grows with
  the bytes
"""
