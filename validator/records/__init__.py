"""Comparing logs record by record, where a log cleaner has been.

- `commits`: which records of compacted partitions are settled: their transaction was committed, or they never had one
- `explain`: of every replica of a compacted partition: which records that one side alone holds a log cleaner explains
- `frames`: comparing records in Spark's own columns: no Python touches a record
- `records`: record mode: every record of source and replica held against each other with Spark's own Kafka connector
- `run`: one run in mode `records`: the groups of partitions of records.py one after the other, told as a run of
  batches is
- `second_look`: records of compacted partitions that a first look could not explain, looked for in the whole log of
  the side that lacks them: a log cleaner knows more than a range does, later records of a key beyond its end and
  earlier ones before its start
- `tally`: one replica's result of a comparison by records: sums, watermark, findings, and what is lawful
"""
