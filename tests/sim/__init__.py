"""A fleet of sidecars in a simulated world: clocks, network, store, Kafka and crashes out of one seed.

What runs is the product: FleetRunner, Head, Member, SharedController, StoredController, PromoteDriver, Balancer and
the router's lanes, fences and lease gate. What is simulated is everything they talk to. A story is one seed: faults
and promotes at random, then peace; invariants are checked after every event. File map: `loop` time and
processes, `network`, `store`, `target` (KRaft and the real brokers), `source`, `sidecar` and `router` one process,
`ports` what the head's work asks of the target, `world` who is who and what must hold, `story` what happens,
`mutations` rules taken out to see that they are missed.
"""
