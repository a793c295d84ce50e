"""Membership in a cluster that is run by ZooKeeper: sources before KRaft, that is.

- `broker_node`: the sidecar's own znode among the brokers: made, kept, taken away
- `checks`: whether such a source can be joined, asked before
- `cluster`: ZooKeeperCluster, which puts the parts together behind the face of TargetCluster
- `controller`: finds the active controller, which is one of the brokers
- `image`: ZooKeeperImage, an image of the cluster read from its znodes, wherever a control request says to look
- `operations`: requests of a link broker to the controller of a ZooKeeper cluster, where they are not those of KRaft
- `znodes`: paths and contents of Kafka's znodes
"""
