"""Rights of clients at the two clusters: which ACLs a link carries over, and who may at the source but not at the target.

- `acls`: an ACL as Kafka has it, and the answer of Kafka's authorizer to a question
- `carry`: the ACLs that a link carries: chosen by filters, mapped to the target's principals, compared with the target
- `lacking`: principals that may use mirrored topics and held groups at the source, and may not at the target
- `quotas`: client quotas and SCRAM users that the target lacks
- `renamed`: the ACLs of a source whose topics have a prefix before their names at the target
"""
