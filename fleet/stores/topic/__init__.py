"""The state in a compacted topic of the target cluster.

- `admin`: creates the state topic if it is missing, refuses one whose settings would lose state
- `brokers`: connections: bootstrap addresses, the leader of the topic, the transaction coordinator
- `producer`: transactional producer of the state topic: fencing, and transactions whose outcome is never guessed
- `records`: the meaning of the records in the state topic
- `store`: the store itself: reads, seat, life
- `tail`: follows the state topic: the tree as every process knows it, and signs of life
- `writer`: claims and commits, and the settling of commits without an answer
"""
