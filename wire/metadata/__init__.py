"""KRaft's metadata log: records decoded by generated tables, and the image of the cluster they add up to."""

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
