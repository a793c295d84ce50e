"""Benchmarks on real brokers: replication beside Kafka's own follower, promote pause, memory.

Every figure is a ratio of medians over interleaved rounds of one run; raw rounds are kept in the report.
`bench/micro` times single functions of the hot path and needs no broker.
"""
