"""Rights, quotas and users of a link's clients: read at both clusters, compared, carried to the target.

- `cluster_access`: ACLs, client quotas and SCRAM users of one cluster, read and changed
- `keeper`: follows the source's ACLs at the target, for one link
- `options`: the link's options about ACLs
- `report`: the difference of both clusters, for people: what is missing, who may not, what is left out
"""
