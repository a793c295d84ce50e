"""A fleet of sidecars and two Kafka clusters in a simulated world: clocks, network, store and crashes out of one seed.

What runs is the product: FleetRunner, Head, Member, SharedController, StoredController, PromoteDriver, Balancer, the
router's lanes, fences and lease gate, and of a switch TakeOver, SyncReplicas, LinkSwitch and SourceSync. What is simulated
is everything they talk to, and of the sidecar the copies and how an in-sync follower reads. A story is one seed: faults
at random, and promotes or switches there and back, then peace; invariants are checked after every event. Some switches are
in ambush: more faults come in the very moment in which a step is written down. File map:
`loop` time and processes, `network`, `store`, `cluster` (KRaft) with `replicas` (its brokers' logs), of which there are
two alike, `seen` a cluster as a sidecar sees it, `sidecar` one process, `place` the same as a broker of one cluster,
`router` and `follower` parts of that, `duties` of the link controller, `world` who is who and what must hold, `faults`
clients and what goes wrong, with `ambush`, `story` what happens, or a chain of events of `directed`, `mutations` rules taken
out to see that they are missed, of a switch in `switch_mutations`.
"""
