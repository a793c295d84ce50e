"""Checks: before a change, by doctor, and in the dry run of a promote.

- `beginning_again`: whether a FAILED mirror can be begun again with its topic, and what to do if it cannot
- `doctor`: checks that need nothing but a client's view of the two clusters: for `linker doctor`, with a sidecar and
  without one (doctor_alone.py puts them together for the latter)
- `doctor_alone`: `linker doctor` before there is a sidecar: all checks that two clusters' clients can make, put
  together
- `forked`: mirror partitions that a real broker leads without a promote: what was written to whom meanwhile, as it
  stands now
- `group_kinds`: doctor on groups of the source that are not held: streams groups, share groups, ids that cannot be
  kept, and those that the link's patterns leave out
- `holdings`: what would be gone if a mirror's copies were dropped: how much each copy holds, and what of it is
  nowhere else
- `limits`: what a cluster limits of the sidecar's: connections of one address, and quotas of the link's principal
- `message_format`: topics whose logs have records from before Kafka 0.11 (message format v0 or v1)
- `mirror_configs`: what differs at the target from the configs that a mirror is to have: somebody changed it, and it
  is not put back yet, or is none of those that are
- `mirror_states`: a line for every mirror that is not ACTIVE: why, and what to do next
- `missing_records`: what a promote would lose now: records that the source has, and that a replica of the target has
  not from its start on
- `other_tools`: what other tools have done at the target that concerns mirrors or the link broker: all of it out of
  the metadata log, so nobody is asked
- `preflight`: what is checked before anything is changed, as findings a person can act on; `create` refuses on the
  first fatal one, `doctor` shows them all
- `replica_logs`: where single replicas' logs begin and end, as their brokers tell it, whoever leads; and where the
  source's do
- `replication_factor`: a mirror that gets fewer replicas than the target's other topics: taken from the source, and
  easily overlooked
- `share_groups`: share groups (KIP-932) of the target that subscribe to a mirror: they get nothing of it before the
  promote
- `this_machine`: what can fail on this machine, tried before the target hears of this sidecar
- `topic_names`: names of topics that cannot be mirrored: Kafka's own, and those that the target would take for
  another topic's
"""
