"""The state in ZooKeeper.

- `client`: reads, watches and transactions, each with a deadline
- `kazoo_client`: a kazoo client that reports every event of its connection
- `plan`: a commit as znode operations of one transaction; nodes as JSON envelopes
- `seat`: live sidecars and the holder of the seat, as ephemeral nodes
- `session`: one ZooKeeper session for asyncio, through kazoo
- `store`: the store itself: reads and commits
"""
