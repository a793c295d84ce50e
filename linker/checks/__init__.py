"""What doctor and the dry run of a promote say of mirrors as they are now: each a question of its own, answered in lines.

File map: `mirror_states` what every mirror that is not ACTIVE lacks and what to do, `beginning_again` whether a
FAILED one can be begun again, `forked` what a real broker took by itself, `mirror_configs` what differs at the
target from what the mirror is to have,
`replica_logs` where the logs of the target's replicas begin and end, `missing_records` what a promote would lose,
`holdings` what a delete or a new beginning would drop, `other_tools` what somebody else did at the target,
`limits` how many connections and bytes a cluster leaves to a link,
`share_groups` who gets nothing of a mirror, `replication_factor` a topic with fewer replicas than the target's
others.
"""
