"""Checks: before a change, by doctor, and in the dry run of a promote.

- `beginning_again`: whether a FAILED mirror can be begun again with its topic, and what to do if it cannot
- `doctor`: checks that need nothing but a client's view of the two clusters: for `linker doctor`, with a sidecar and
  without one (doctor_alone.py puts them together for the latter)
- `doctor_alone`: `linker doctor` before there is a sidecar: all checks that two clusters' clients can make, put
  together
- `final_configs`: configs that a promote sets at its end, asked for before it begins
- `forked`: mirror partitions that a real broker leads without a promote, and the records that it took
- `group_kinds`: doctor on groups of the source that are not held: streams groups, share groups, ids that cannot be
  kept, and those that the link's patterns leave out
- `holdings`: counts what would be gone if a mirror's copies were dropped, and how much of it is nowhere else
- `limits`: a cluster's limits for the sidecar: connections of one address, quotas of the link's principal
- `message_format`: topics whose logs have records from before Kafka 0.11 (message format v0 or v1)
- `mirror_configs`: differences between a mirror's topic configs at the target and those that it is to have
- `mirror_states`: a line for every mirror that is not ACTIVE: why, and what to do next
- `missing_records`: counts the records that a promote would lose now
- `other_tools`: finds changes that other tools made at the target and that concern mirrors or the link broker
- `preflight`: checks before a change: `create` refuses on the first fatal finding, `doctor` shows them all
- `replica_logs`: log start and log end of single replicas as their brokers tell them, and of the source
- `replication_factor`: a mirror that gets fewer replicas than the target's other topics: taken from the source, and
  easily overlooked
- `share_groups`: share groups (KIP-932) of the target that subscribe to a mirror: they get nothing of it before the
  promote
- `source_membership`: whether the sidecar may become a broker of a link's source: asked before it joins, by link update
  and by doctor
- `this_machine`: checks this machine before the target hears of the sidecar
- `topic_names`: names of topics that cannot be mirrored: Kafka's own, MirrorMaker 2's, and those that the target would
  take for another topic's
"""
