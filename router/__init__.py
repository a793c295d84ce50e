"""Client to source: takes clients' requests at the target, forwards writes, serves reads, passes on the rest.

- `addressed`: admin requests that are addressed to this broker: answered as one that has no log, no group and no
  transaction
- `api_versions`: apiVersions as our clients see it: the real broker's answer, with the apis we serve ourselves cut to
  what we serve
- `apis`: which request is whose: one row for every api key of Kafka 4.3, decided once
- `authorize`: what the client may do, asked of a real broker over the client's own authenticated connection
- `bare_tokens`: logins of clients from before SaslAuthenticate: after SaslHandshake v0 their tokens come as they are,
  in frames without a header, and so do the broker's (sarama before 1.41 by default, kaf, and whoever is as old)
- `broker_resource`: what configs this broker has, and which changes of them it takes: pure
- `budget`: one byte budget for all that the router keeps in memory of clients' produces
- `client_session`: everything the router keeps for one client connection
- `dispatch`: the handler of the client listeners: which request is answered by whom
- `fence`: which partitions hold new produces, and what must still be waited for
- `fetch/`: a read of a mirror: from the window, from the source, or not yet
- `leadership`: answering "not me": the new leader of a partition out of the target's metadata, as clients may be told
  it
- `login`: whether the client of a SASL listener has logged in, as far as the real broker's answers tell
- `offsets`: listOffsets and OffsetForLeaderEpoch for consumers: the source's offsets, under the mirror's one leader
  epoch
- `on_mirrors`: requests to a partition's leader that a mirror cannot serve: ended at once, with an error that no
  client tries again
- `passthrough`: the client's own connection to a real broker: whatever is not ours goes there as raw frames, and
  comes back the same way
- `ports`: what the router needs from the rest of the sidecar, as Protocols; ``linker`` provides them
- `produce/`: a write on its way to the source and its answer on the way back
- `tasks`: the few background tasks of the router (opening connections, refreshing metadata), owned in one place
- `txn_markers`: writeTxnMarkers from the target's transaction coordinators
"""
