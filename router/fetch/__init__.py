"""A read of a mirror: from the window, from the source, or not yet.

- `decision`: answers to a consumer's fetch of a partition that need no data: refusals, and the replica to read from
- `first_fetches`: the first offset that each client asks for, of some partitions, from a moment on
- `held_readers`: consumers that find a mirror empty until its promote, for status
- `job`: one fetch request of a consumer as the client sent it and as source nodes are asked
- `overdue`: the last deadline of a fetch: its connection ends, rather than that the fetch stays unanswered
- `session`: Fetch of one consumer connection: from memory at the tail, from the source elsewhere, in one answer
- `source`: fetches of consumers at the source: one request at a time to each node
- `unread`: one budget for answers that consumers have not read yet
"""
