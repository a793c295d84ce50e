"""Client to source: takes clients' requests at the target, forwards writes, serves reads, passes on the rest.

- `addressed`: admin requests to this broker: answered as by a broker without logs, groups or transactions
- `api_versions`: ApiVersions for clients: the real broker's answer, cut to the versions that this sidecar serves
- `apis`: one row for every api key of Kafka 4.3: the sidecar or a real broker answers it
- `authorize`: the rights of a client, asked of a real broker over the client's own authenticated connection
- `bare_tokens`: logins of clients older than SaslAuthenticate: tokens without a header after SaslHandshake v0
- `broker_resource`: the configs of this broker, and the changes of them that it takes; pure
- `budget`: the byte budget for all writes that the router holds in memory
- `client_session`: everything that the router keeps for one client connection
- `clients_seen`: the clients that write or read a mirror here, for status
- `dispatch`: picks the handler of each request of a client
- `fence`: partitions whose new writes are held, and the writes in flight that a fence waits for
- `fetch/`: a read of a mirror: from the window, from the source, or not yet
- `leadership`: NOT_LEADER answers that name the new leader, out of the target's metadata
- `login`: whether a client of a SASL listener has logged in, judged by the real broker's answers
- `offsets`: ListOffsets and OffsetForLeaderEpoch for consumers: the source's offsets under the mirror's one leader
  epoch
- `on_mirrors`: requests that a mirror cannot serve: refused at once, with an error that clients do not retry
- `passthrough`: relays everything else as raw frames between the client and a real broker
- `ports`: the parts of the sidecar that the router needs, as Protocols; `linker` provides them
- `produce/`: a write on its way to the source and its answer on the way back
- `split`: a request that this sidecar answers in part: a real broker answers the rest, and both answers are merged
- `tasks`: owns the router's background tasks: opening connections, refreshing metadata
- `turns`: works on large requests in slices, one slice per turn of the event loop for all clients together
- `txn_markers`: WriteTxnMarkers from the transaction coordinators of the cluster that the mirrors lie in
- `way_in`: requests of a client that has not logged in yet
"""
