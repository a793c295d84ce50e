"""Bytes and messages of the protocol, read and written without a copy where the hot path goes.

- `batch`: record batches (magic 2) as bytes: the hot walk that stamps the session's leader epoch, headers, records
- `batch_fields`: A few fields of a batch (magic 2) for those who have each forwarded one in their hands and need no
  more of it
- `buffers`: large receive buffers, reused without anybody having to give them back
- `compression`: records of compressed batches, unpacked within a bound
- `error_codes`: kafka's error codes under Kafka's names, as plain numbers: those that this code answers with or looks
  for
- `fetch`: the hand-written Fetch codec in one place to import from; see fetch_request.py and fetch_response.py
- `fetch_request`: fetch requests: parsed when a follower or consumer sends one, built when we read from a source
- `fetch_response`: fetch responses: built for followers and consumers around untouched record views, parsed from a
  source
- `framing`: cutting a byte stream into Kafka frames without copying
- `group_messages`: offsetCommit, OffsetFetch and ConsumerGroupDescribe by hand: a sync of thousands of consumer
  groups consists of them
- `list_offsets`: listOffsets over a cluster: split by leader, asked at once, repeated while leadership moves
- `offset_requests`: listOffsets and OffsetForLeaderEpoch as clients and followers send them, and WriteTxnMarkers as
  coordinators do: read by hand, and answered by hand
- `partition_messages`: metadata and ListOffsets by hand: a promote asks for hundreds of partitions while their
  producers are held
- `pieces`: large answers are read and written in pieces while clients ask for something
- `primitives`: kafka's wire primitives for the parts that are parsed by hand: varints, strings, tagged fields
- `produce`: the hand-written Produce codec in one place to import from; see produce_request.py and
  produce_response.py
- `produce_common`: what requests and responses of Produce have in common: versions, the names of topics, limits of
  what is parsed
- `produce_request`: produce requests: a client's is taken apart, one for a source is put together; records are never
  touched
- `produce_response`: produce responses: a source's is parsed, one for a client is put together
- `produce_single`: produce of one batch, versions 9 to 13: what requests and answers about a partition have in common
  is put together once
- `request_header`: request headers by hand: the listener reads one per request, and the hot path cannot afford the
  schema codec
- `types`: the few value types every package shares
- `whole`: A message that is read by hand from its first byte to its last: everything that can be wrong with it is a
  MalformedFrame that names the API and its version
"""
