"""KRaft's metadata log: records decoded by generated tables, and the image of the cluster they add up to.

- `decode`: values of the metadata log's records, decoded by the generated tables
- `fields`: the shape of the generated metadata-record tables (schemas.py)
- `image`: the target cluster as its metadata log describes it
- `replay`: batches of the metadata log and of its snapshots, fed into a ClusterImage
- `schemas`: record types of KRaft's metadata log, by api key
"""

from wire.metadata.decode import MetadataRecord, decode_metadata_value
from wire.metadata.image import BrokerImage, ClusterImage, Endpoint, PartitionImage, TopicImage
from wire.metadata.replay import load_snapshot, replay_batches

__all__ = [
    "BrokerImage",
    "ClusterImage",
    "Endpoint",
    "MetadataRecord",
    "PartitionImage",
    "TopicImage",
    "decode_metadata_value",
    "load_snapshot",
    "replay_batches",
]
