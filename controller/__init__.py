"""Decisions about links, mirrors, promotes and groups: pure functions of a state, no input or output.

- `access/`: rights of clients: the ACLs that a link carries over, and who may at the source but not at the target
- `alter_partition`: one partition of an AlterPartition request, and the request itself
- `cluster_view`: the parts of the target's metadata image that this package reads
- `codec`: entities to JSON values and back
- `decide/`: decisions: functions of the image that return records, and refuse by raising
- `errors`: the errors of this package
- `group_phases`: the life of a mirrored consumer group as a table
- `groups`: the record of the gate that holds a consumer group
- `image`: the state in memory; only `replay` changes it
- `json_fields`: dataclasses as JSON objects and back, by the types of their fields
- `judge/`: judgements of offsets, hand-overs, late starts and gates
- `keys`: names and paths in the state store
- `mirror_group`: a mirrored consumer group as it is stored
- `operations`: a commit as the store takes it: puts and deletes with expected versions
- `phases`: the life of a mirror partition as a table
- `plan/`: plans: placement, replica lists, elections, topic configs, producer ids
- `portions`: records in portions, of which each fits in one commit of every store
- `proof`: results of the validator and the evidence of a promote, as they are stored
- `state`: the durable entities, and the records that change them
"""
