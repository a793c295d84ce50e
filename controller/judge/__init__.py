"""Judgements of offsets, hand-overs, late starts and gates.

- `alignment`: whether the source and every replica of a fenced batch end at the same offset
- `group_gates`: the gate that holds a group, and the groups that no gate holds
- `group_offsets`: the offsets of a source group that the target gets
- `hand_over`: the AlterPartition of a hand-over: its contents, its answer, its proof in the metadata log
- `late_starts`: judges the records that a promote would leave behind because replicas start later than the source
- `take_over`: the next request that brings a partition from its own brokers to link brokers, or back
"""
