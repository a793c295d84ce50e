"""Consumer groups of a link: found at the source, held at the target by a gate, promoted.

- `application_state`: the topology of a streams group's application, and the state that it keeps in topics
- `bounds`: log start and end of each partition on the target; commits are kept inside them
- `confirm`: checks after the opening of a group: it runs, and its members began at the committed offsets
- `discovery`: one look at the source's groups, their members and topics, and the changes that follow for the link
- `excluded`: groups of the source that the patterns leave out although they read mirrored topics: reported, never
  touched
- `gate_keeper`: one mirrored group: its running state, every call of its gate, its offsets at both clusters
- `gates/`: gates: our members and transactions in a target group, which keep its consumers waiting
- `group_book`: the durable state of a link's groups: read here, changed through the link controller
- `group_ids`: group ids that cannot be kept, and the reason
- `group_reader`: group lists, members and committed offsets of one cluster, read from the coordinators
- `group_run`: the running state of a group as others read it: gate, offsets of both sides, members
- `group_steps`: one group's way through its phases: gate, promote, demote
- `left_out`: commits that the target cannot have: the partition is gone, or the text beside the offset is too long
- `manager`: all groups of one link on the link controller: the beats of discovery and of gate renewal
- `members`: subscriptions of classic members, decoded from DescribeGroups; whether the coordinator could decode them
  too
- `offset_sync`: committed offsets, read at the source in rounds and committed on the target through the gates
- `other_kinds`: streams groups (KIP-1071) and share groups (KIP-932): members, topics, offsets, configs
- `settings`: the link's options about groups
- `share_offsets`: start offsets of share groups: read, and set for a group without members
- `source_patience`: a silent source during a promote: for how long it is asked, and which offsets count instead
- `target_checks`: steps that depend on the members on the target: another gate, a retry, a promote by policy
- `tools`: shared parts of one link's groups: both clusters' coordinators, the group book, the maker of gates
- `topology_reader`: the topology of a streams group, read from __consumer_offsets
- `unheld_offsets`: offsets of groups that no gate holds, brought over as long as nobody is in them on the target
- `unheld_steps`: the promote of a group that no gate holds
- `views`: groups as the brokers describe them, built from the answers that `group_reader` fetches
- `waits`: the part that all steps of a group share: the wait until nobody is in it at a cluster
"""
