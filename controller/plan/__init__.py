"""Plans: placement, replica lists, elections, topic configs, producer ids.

- `elections`: which sidecar should lead each partition, and which link brokers should it have? Pure and deterministic
- `placement`: which real brokers get a mirror partition's replicas, and which of them will lead
- `producer_ids`: producer ids: how far the target's allocator has to be moved, and whether forwarding is safe
- `replicas`: the replica list of one mirror partition over several link brokers: the one next step
- `topic_configs`: topic configs of a mirror: those of the source that it gets, those that mirroring forces, those
  that promote sets
"""
