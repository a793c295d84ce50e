"""The state in ZooKeeper.

- `client`: what the store asks ZooKeeper for: reads, watches and transactions, each with a deadline
- `kazoo_client`: kazoo's client, made so that nothing of what happens to it stays untold
- `plan`: what a commit is in ZooKeeper: nodes as JSON envelopes, and the znode operations of one transaction
- `seat`: who is alive and who has the seat, as ephemeral nodes of ZooKeeper
- `session`: one ZooKeeper session as asyncio sees it, through kazoo
- `store`: the store of a fleet in ZooKeeper
"""
