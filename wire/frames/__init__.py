"""Frames, record batches and the messages of the hot path, read and written without copies.

- `alter_isr`: AlterPartition v0 and v1 (AlterIsr, Kafka 2.7 to 3.2), which name topics where later versions have ids
- `batch`: record batches (magic 2) as bytes: headers, records, and the walk that stamps the leader epoch
- `batch_fields`: fields of a single batch, for code that needs no more of it
- `buffers`: large receive buffers, reused when no view of them is left
- `compression`: records of compressed batches, decompressed up to a limit
- `config_messages`: DescribeConfigs answers for thousands of topics
- `control_requests`: LeaderAndIsr, StopReplica and UpdateMetadata: how the controller of a ZooKeeper cluster (up to Kafka
  3.9) tells brokers
- `error_codes`: the error codes that this code sends or tests for, by Kafka's names
- `fetch`: the Fetch codec in one place to import from
- `fetch_request`: Fetch requests: of followers and consumers parsed, to a source built
- `fetch_response`: Fetch responses: of a source parsed, to followers and consumers built around the records' bytes
- `framing`: a byte stream cut into Kafka frames without a copy
- `group_messages`: OffsetCommit, OffsetFetch and ConsumerGroupDescribe for thousands of groups
- `leader_epochs`: the leader epochs of a log that was led by others first
- `list_offsets`: ListOffsets over a cluster: split by leader, repeated while leadership moves
- `offset_requests`: ListOffsets, OffsetForLeaderEpoch and WriteTxnMarkers as a broker reads and answers them
- `partition_messages`: Metadata and ListOffsets for hundreds of partitions of a promote
- `pieces`: large answers are read and written in pieces while clients wait for theirs
- `primitives`: varints, strings and tagged fields
- `produce`: the Produce codec in one place to import from
- `produce_common`: versions and limits that Produce requests and responses share
- `produce_request`: Produce requests: of a client parsed, to a source built; records stay untouched
- `produce_response`: Produce responses: of a source parsed, to a client built
- `produce_single`: Produce of one batch for one partition, the usual request of most clients
- `request_header`: the request header, in the version that the api and its version call for
- `topic_key`: how Fetch and Produce name a topic: by its name or its id, as the version says
- `types`: small types that are used everywhere
- `whole`: records of a Fetch answer as the whole batches that they hold
"""
