"""Comparing logs record by record, where a log cleaner has been.

- `commits`: which records of compacted partitions are settled: their transaction was committed, or they never had one
- `explain`: finds the records that only one side holds and a log cleaner explains
- `frames`: comparing records in Spark's own columns: no Python touches a record
- `logs`: the logs of one attempt at a group of partitions, both sides', as frames of records
- `records`: record mode: compares every record of source and replica through Spark's own Kafka connector
- `run`: one run in mode `records`: its groups of partitions one after the other, with the events of a batch run
- `second_look`: reads the whole log of a side for records that the first look could not explain
- `tally`: one replica's result of a comparison by records: sums, watermark, findings, and what is lawful
"""
