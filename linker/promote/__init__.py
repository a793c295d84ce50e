"""A promote or a failover from the first check to the last AlterPartition.

- `at_source`: who else is at the source while a promote waits for it: open transactions, and producers that write
  there directly, before the hand-over and right after it
- `checks`: the steps before the hand-over may be sent: catch up, fence, align, compare the tails
- `context`: what the steps of a promote share: deadlines, insisting, timings, reports
- `driver`: runs a promote job batch by batch through the phases of `phases`, and takes up what a crash left
- `failover`: the steps of a failover where they differ from a promote's: no catching up, the longest replica instead
  of the source, and markers for what was left open
- `failover_ports`: what a failover needs done (linker.promote.failover), with everything that would ask the source
  left out
- `fleet_ports`: what the promote driver needs done, done with router, fetcher, source and target
  (linker.promote.ports)
- `forward_only`: the comparison where there is only forward: a real broker is in the ISR already, and the link broker
  leads yet
- `hand_over`: from VALIDATED on: send the AlterPartition until the metadata log shows it, or prove that it never will
- `jobs`: the promotes of one link, run by the link controller's sidecar: one after the other, and what the last one
  left first
- `left_behind`: what was written to the source of topics that were promoted: it is not at the target, and whoever
  wrote it has not moved
- `link_ports`: what a promote or a failover of one link works with: the ports of its controller, put together out of
  the link's parts
- `new_leaders`: around a hand-over: ways to the brokers opened before anything is held, and brokers that know who
  leads now
- `ports`: what the promote driver needs done outside: Protocols that `linker` implements over router, fetcher and
  target
- `producer_states`: producers as a partition's leader knows them (DescribeProducers, KIP-664), and ending what one of
  them left open
- `rehearsal`: what a promote of a link would meet now, as doctor shows it: who is at the source, and how long writes
  would be held
- `replica_as_source`: while a partition is failed over, its longest replica stands in for the source: followers that
  have less are given the rest of it by the sidecar that leads the partition, as they were given the source's batches
  before
- `source_fence`: A source that refuses writes to a topic: `DENY WRITE` for everybody, as an ACL of the source
- `source_fence_debts`: opens at the source what a promote that was abandoned could not open for certain: the source
  was away just then, or a request to close it may still have been under way
- `source_fencing`: the step of a promote that makes the source refuse writes
- `tail_batches`: what of the copies is compared while the fence is held (linker.promote.ports.TailCheck)
"""
