"""Decisions about links, mirrors, promotes and groups: pure functions of a state, and no input or output.

- `cluster_view`: the shape of the target's metadata image that this package reads
- `codec`: entities to JSON values and back
- `decide/`: decisions: functions of the image that return records, and refuse by raising
- `errors`: errors of the controller
- `gate_codec`: gate records to JSON values and back
- `group_codec`: A mirrored group as JSON and back
- `group_phases`: the life of a mirrored consumer group as a table
- `groups`: consumer groups of a link: what is kept about them
- `image`: the controller's state in memory: records go in by `replay`, which alone changes it
- `judge/`: judgements of what was read: offsets, hand-overs, late starts
- `keys`: names and paths of the state store, in the shape of a ZooKeeper tree
- `operations`: A change of the state as a store takes it: nodes that are put and deleted, each with the version it
  must have
- `phases`: the life of a mirror partition as a table
- `plan/`: plans: placement, replica lists, elections, topic configs, producer ids
- `state`: the durable entities
"""
