"""A promote or a failover, from the first check to the last AlterPartition.

- `at_source`: open transactions and direct producers at the source, before the hand-over and right after it
- `checks`: the steps before the hand-over may be sent: catch up, fence, align, compare the tails
- `context`: the parts that the steps of a promote share: deadlines, retries, timings, reports
- `driver`: runs a promote job batch by batch through its phases, and resumes after a crash
- `failover`: the steps of a failover that differ from a promote's
- `failover_ports`: the ports of a failover, which never ask the source
- `fleet_ports`: the ports of the promote driver, built on router, fetcher, source and target
- `forward_only`: the comparison after which a batch can no longer be undone
- `growth`: the partitions that the source adds while a promote runs
- `hand_over`: sends the AlterPartition until the metadata log shows it, or proves that it never will
- `jobs`: runs the promotes of one link one after the other, and settles the last run's first
- `left_behind`: finds records that were written to the source after a topic's promote
- `link_ports`: builds the ports of a promote or a failover out of the parts of a link
- `new_leaders`: connects to the new leaders before a hand-over, and waits until they know that they lead
- `ports`: the Protocols that the promote driver needs, and its settings
- `producer_states`: the producers of a partition (DescribeProducers, KIP-664), and abort markers for them
- `rehearsal`: measures for doctor how a promote would go now
- `replica_as_source`: copies from the longest replica while a partition is failed over
- `replica_proof`: the proof that a promote asks of the replicas: validated almost to the end, no late log start
- `source_fence`: makes a source refuse writes to a topic, with a DENY WRITE ACL
- `source_fence_debts`: opens the source again after a promote that could not do so for certain
- `source_fencing`: the step of a promote that makes the source refuse writes
- `tail_batches`: compares the last batches of the copies while the fence is held
- `taken_source`: where a source ends that link brokers hold in a switch, asked of those who follow them
"""
