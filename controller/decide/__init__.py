"""Decisions: functions of the image that return records, and refuse by raising.

- `acls`: the ACLs that a link has made at the target
- `deletions`: what goes before a link that is too large to go in one commit
- `failovers`: a failover: the source is dead, and the target takes over at the end of its replicas
- `give_backs`: brokers of a cluster lead a topic again that link brokers led there
- `groups`: mirrored groups: discovery, promote, demote
- `growth`: partitions that the source has added to a mirrored topic
- `links`: links: made, changed and deleted
- `mirrors`: mirror topics and the phases of their partitions
- `promotes`: promotes and their steps
- `restores`: a source that comes back after a failover, and follows the target
- `reversals`: a topic is led by the cluster that it was switched to, and mirrored in the one that it left
- `reverse`: the link that runs against another one, for topics that are switched
- `source_fence`: `--fence-source`: a source that refuses writes to a topic while it is promoted
- `take_overs`: link brokers become the leaders of a topic in the cluster that is left
- `unheld_groups`: groups that no gate holds: who they are, and which of them a promote moves all the same
- `validations`: results of the validator
"""
