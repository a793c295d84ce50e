"""Consumer groups of a link: found at the source, held at the target by a gate, promoted.

- `bounds`: what the target has of each partition, for keeping commits inside it
- `confirm`: what is to be seen of a group after its opening: that it runs, and that its members began at the
  committed offsets
- `discovery`: one look at the source: which groups it has, who is in them, what they read; and what that means for
  the link
- `excluded`: groups of the source that the link's patterns leave out although they read mirrored topics: told, never
  touched
- `gate_keeper`: one group's gate and its offsets at both clusters: taken, let go, committed through, opened
- `gate_maker`: gates for the groups of one link, planned from what the source shows of a group (tools.GateMaker)
- `gates/`: gates: members and transactions of ours in a target group, which keep its consumers waiting
- `group_book`: what is durable about a link's groups: reading it, and changing it through the link controller
- `group_deletions`: small forms in which a group's steps are written down: its reason, its offsets, and who it was
  lost to
- `group_ids`: group ids as they are in the field: which cannot be kept, and why
- `group_reader`: groups of one cluster as their coordinators tell them: which there are, who is in them, what they
  have committed
- `group_run`: one group as this process knows it now: its gate, its offsets on both sides, who is in it
- `group_steps`: one group's way through its phases: gate, promote, demote
- `left_out`: the part of a group's commits that the target cannot have: partitions that are no more, texts that are
  too long
- `manager`: the groups of one link, on the link controller: when the source is looked at, offsets are synced, gates
  are renewed
- `members`: what members of a classic group subscribed to, read out of DescribeGroups, and whether a coordinator
  could read it too
- `offset_sync`: the offsets of a link's groups: read at the source round after round, and committed on the target
  through the gates, where they have changed
- `other_kinds`: groups that are neither classic nor of the consumer protocol: what streams groups (KIP-1071) and
  share groups (KIP-932) read
- `places`: which broker coordinates what, as far as somebody has asked for it lately
- `settings`: the link's options about groups, as the work on them takes them
- `source_patience`: A source that does not answer while a group is promoted: for how long it is asked, and what
  counts instead
- `tools`: what the work on one link's groups shares: both clusters' coordinators, what is durable, and how gates are
  made
- `views`: groups as a cluster's brokers show them: what group_reader.py brings, and out of which answers
"""
