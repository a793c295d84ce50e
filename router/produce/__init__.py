"""A write on its way to the source and its answer on the way back.

- `admission`: decides whether a batch is forwarded, or which error code it gets
- `after_hand_over`: clients whose writes go on to the target's new leaders until every broker names these leaders
- `answers`: the answers to one client: the source's, and those of requests whose time has ended
- `batch`: one batch on its way through a lane, and its state there
- `fast_path`: the usual write in one piece: nothing waits before its batches, and all of them can be sent at once
- `forwarded`: counts the records and bytes that the source has taken, per partition
- `forwarding`: shared by all clients: fences, the byte budget, leader recovery, the deadline sweep
- `job`: one produce request as the client sent it and as the source is sent it, with both answers
- `lane_states`: the tables of the lanes: the meaning of a source's error code, and the states of a lane
- `lanes`: the order of writes: one lane per client connection and partition
- `lease_gate`: holds back an acknowledgement until the sidecar's lease is proved
- `retry_order`: keeps the order of an idempotent producer's retries: no later batch overtakes one that was returned
- `routes`: the connection that each lane of a client sends on, and the wait for one
- `session`: Produce of one client: parse, forward each partition through its lane, merge the answers
- `source_route`: connections to the source, and the search for a leader that has moved
- `transactions`: holds a transaction's writes to a mirror until its promote, for some seconds
"""
