"""A read of a mirror: from the window, from the source, or not yet.

- `decision`: what a partition of a consumer's fetch gets that needs no data: refusals, and the replica in the
  consumer's rack or the one that the consumer named
- `first_fetches`: the first offset that each client asks for, of some partitions, from a moment on
- `held_readers`: which consumers are held until their promote (``RouterPorts.holds_reads``): they find a topic empty,
  so people are told
- `job`: one fetch request of a consumer on both of its sides: what is owed to the client, and what a source node is
  asked
- `session`: fetch of one consumer connection: from memory at the tail, from the source elsewhere, merged into one
  answer
- `source`: what a consumer's fetches ask of the source: one request at a time to each node, and what comes of it
- `unread`: what consumers were answered and have not taken yet, in one budget
"""
