"""Clusters, workload, demo and benchmarks, for a source checkout; not part of the installed package.

- `bench/`: benchmarks beside Kafka's own follower and MirrorMaker 2; every figure is a ratio within one run
- `clusters/`: real clusters on loopback: jars, brokers, sidecars and child processes
- `demo/`: `linker demo`: a source and a target, live clients, link, mirror, promote, switch, and a report
- `workload/`: live producers and consumers, old data, and checks that nothing was lost, doubled or reordered
"""
