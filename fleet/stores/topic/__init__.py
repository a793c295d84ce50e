"""The state in a compacted topic of the target cluster.

- `admin`: the state topic itself: made if it is missing, refused if its settings would lose state
- `brokers`: connections of the topic store: bootstrap addresses, the topic's leader, the transaction coordinator
- `producer`: the transactional producer of the state topic: fencing, and transactions whose outcome is never guessed
- `records`: what the records of the state topic mean
- `store`: the fleet's state in a compacted topic of the target cluster
- `tail`: reading the state topic for ever: the tree as every process of the fleet knows it, and signs of life
- `writer`: the writing side of the topic store: claims, commits, and what becomes of those without an answer
"""
