"""Plans: placement, replica lists, elections, topic configs, producer ids.

- `config_drifts`: configs of a mirror that somebody changed at the target, and those of them that are put back
- `elections`: the sidecar that leads each partition, and the link brokers of each partition
- `evictions`: the way of a partition that a cluster placed on a link broker by itself back to real brokers, one step at
  a time
- `in_sync`: link brokers among the replicas of a partition that its own brokers lead
- `placement`: the real brokers that get a partition's replicas, and the leaders among them
- `producer_ids`: the floor of the target's producer ids, and whether forwarding is safe
- `reassign`: other real brokers for the replicas of a mirror, and the next step at the target
- `replicas`: the next step from one replica list to another, link brokers included
- `taken_configs`: topic configs that a take-over changes, kept while it lasts and put back after
- `source_configs`: a source topic's configs where the source's brokers differ in their defaults
- `topic_configs`: topic configs of a mirror: copied, forced while it is mirrored, set by a promote
- `upstream`: the clusters that a topic has passed, and whether a mirror of it would close a ring
"""
