"""A write on its way to the source and its answer on the way back.

- `admission`: whether a batch of a client is forwarded at all, and if not, the error code it gets
- `after_hand_over`: who is carried after a hand-over, and to whom: the clients whose produces go on to the target's
  new leaders until every broker names these, and who those leaders are
- `answers`: what one client is told of its produces: the source's answers, and the end of their time
- `batch`: one batch on its way through a lane: what the lane knows of it
- `fast_path`: the usual write in one piece: nothing waits before any of its batches, and the source takes them all
- `forwarded`: what the source has taken of this router, per partition
- `forwarding`: what all clients' forwarding shares: fences and their waiting, the byte budget, leader recovery, the
  deadline sweep
- `job`: one produce request on both of its sides: as the client sent and is answered, as the source is sent and
  answers
- `lane_states`: the tables of the lanes: what an error code of the source means, and the states a lane goes through
- `lanes`: the ordering core of produce forwarding: one lane per (client connection, partition)
- `lease_gate`: what may be told to a producer while several sidecars can forward: the lease at the moment of
  answering
- `retry_order`: batches that went back to an idempotent producer, so that none behind them overtakes them
- `routes`: the ways of one client's lanes: which connection a lane sends on now, and the waiting for it
- `session`: produce of one client: take the request apart, forward each partition through its lane, merge the answers
- `source_route`: connections to the source, and finding the leader again after it moved
- `split`: A request of which a part is ours to answer: the rest goes to a real broker as the client's own, and both
  answers are put together
- `turns`: large requests are worked on in slices, of which one is done in a turn of the event loop, whoever sent them
- `way_in`: the way in: what a client sends until it is known to be logged in
"""
