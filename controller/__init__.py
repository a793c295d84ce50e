"""Decisions about links, mirrors, promotes and groups: pure functions of a state, no input or output.

- `alter_partition`: one partition of an AlterPartition request, and the request itself
- `cluster_view`: the parts of the target's metadata image that this package reads
- `codec`: entities to JSON values and back
- `decide/`: decisions: functions of the image that return records, and refuse by raising
- `errors`: the errors of this package
- `gate_codec`: records of gates to JSON values and back
- `group_codec`: mirrored groups to JSON values and back
- `group_phases`: the life of a mirrored consumer group as a table
- `groups`: the record of the gate that holds a consumer group
- `image`: the state in memory; only `replay` changes it
- `json_fields`: fields of a stored JSON object, read strictly
- `judge/`: judgements of offsets, hand-overs, late starts and gates
- `keys`: names and paths in the state store
- `operations`: a commit as the store takes it: puts and deletes with expected versions
- `phases`: the life of a mirror partition as a table
- `plan/`: plans: placement, replica lists, elections, topic configs, producer ids
- `state`: the durable entities, and the records that change them
- `validation_codec`: results of the validator to JSON values and back
"""
