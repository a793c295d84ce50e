"""Judgements of what was read: offsets, hand-overs, late starts.

- `alignment`: are source and replicas at the same place? Pure judgements of offsets read at one moment, for a fenced
  batch
- `group_offsets`: which offsets of a source group are committed on the target, and when two sets of offsets are the
  same
- `hand_over`: the hand-over, judged: what to put into the AlterPartition, what its answer means, what the metadata
  log proves
- `late_starts`: what a promote would leave behind because replicas start later than the source: pure judgements
"""
