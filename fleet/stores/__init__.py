"""State stores: `sqlite` for one sidecar; ZooKeeper, or a topic of the target, for a fleet.

- `base`: the contract of every state store; one test suite holds all of them to it
- `nodes`: a store's tree in memory: reads, and the check of a commit
- `sole`: a store of one process as the store of a fleet of one: the seat is always free and never lost
- `sqlite`: the embedded store: one SQLite file, one process, one thread
- `topic/`: the state in a compacted topic of the target cluster
- `zookeeper/`: the state in ZooKeeper
"""
