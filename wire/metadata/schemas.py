"""Record types of KRaft's metadata log, by api key. Generated: do not edit.

From the schemas in kafka-metadata 4.3.1, by scripts/generate_metadata_schemas.py.
"""

from wire.metadata.fields import NEWEST, Field, RecordSchema

KAFKA_VERSION = "4.3.1"

SCHEMAS: dict[int, RecordSchema] = {
    0: RecordSchema("RegisterBrokerRecord", 4, (
        Field("broker_id", "int32", (0, NEWEST), 0),
        Field("is_migrating_zk_broker", "bool", (2, NEWEST), False),
        Field("incarnation_id", "uuid", (0, NEWEST), bytes(16)),
        Field("broker_epoch", "int64", (0, NEWEST), 0),
        Field(
            "end_points", "[]struct", (0, NEWEST), (),
            fields=(
                Field("name", "string", (0, NEWEST), ''),
                Field("host", "string", (0, NEWEST), ''),
                Field("port", "uint16", (0, NEWEST), 0),
                Field("security_protocol", "int16", (0, NEWEST), 0),
            ),
        ),
        Field(
            "features", "[]struct", (0, NEWEST), (),
            fields=(
                Field("name", "string", (0, NEWEST), ''),
                Field("min_supported_version", "int16", (0, NEWEST), 0),
                Field("max_supported_version", "int16", (0, NEWEST), 0),
            ),
        ),
        Field("rack", "string", (0, NEWEST), '', nullable=(0, NEWEST)),
        Field("fenced", "bool", (0, NEWEST), True),
        Field("in_controlled_shutdown", "bool", (1, NEWEST), False),
        Field("log_dirs", "[]uuid", (3, NEWEST), (), tag=0, tagged=(3, NEWEST)),
        Field("cordoned_log_dirs", "[]uuid", (4, NEWEST), None, nullable=(4, NEWEST), tag=1, tagged=(4, NEWEST)),
    )),
    1: RecordSchema("UnregisterBrokerRecord", 0, (
        Field("broker_id", "int32", (0, NEWEST), 0),
        Field("broker_epoch", "int64", (0, NEWEST), 0),
    )),
    2: RecordSchema("TopicRecord", 0, (
        Field("name", "string", (0, NEWEST), ''),
        Field("topic_id", "uuid", (0, NEWEST), bytes(16)),
    )),
    3: RecordSchema("PartitionRecord", 2, (
        Field("partition_id", "int32", (0, NEWEST), -1),
        Field("topic_id", "uuid", (0, NEWEST), bytes(16)),
        Field("replicas", "[]int32", (0, NEWEST), ()),
        Field("isr", "[]int32", (0, NEWEST), ()),
        Field("removing_replicas", "[]int32", (0, NEWEST), ()),
        Field("adding_replicas", "[]int32", (0, NEWEST), ()),
        Field("leader", "int32", (0, NEWEST), -1),
        Field("leader_recovery_state", "int8", (0, NEWEST), 0, tag=0, tagged=(0, NEWEST)),
        Field("leader_epoch", "int32", (0, NEWEST), -1),
        Field("partition_epoch", "int32", (0, NEWEST), -1),
        Field("directories", "[]uuid", (1, NEWEST), ()),
        Field("eligible_leader_replicas", "[]int32", (2, NEWEST), None, nullable=(2, NEWEST), tag=1, tagged=(2, NEWEST)),
        Field("last_known_elr", "[]int32", (2, NEWEST), None, nullable=(2, NEWEST), tag=2, tagged=(2, NEWEST)),
    )),
    4: RecordSchema("ConfigRecord", 0, (
        Field("resource_type", "int8", (0, NEWEST), 0),
        Field("resource_name", "string", (0, NEWEST), ''),
        Field("name", "string", (0, NEWEST), ''),
        Field("value", "string", (0, NEWEST), '', nullable=(0, NEWEST)),
    )),
    5: RecordSchema("PartitionChangeRecord", 2, (
        Field("partition_id", "int32", (0, NEWEST), -1),
        Field("topic_id", "uuid", (0, NEWEST), bytes(16)),
        Field("isr", "[]int32", (0, NEWEST), None, nullable=(0, NEWEST), tag=0, tagged=(0, NEWEST)),
        Field("leader", "int32", (0, NEWEST), -2, tag=1, tagged=(0, NEWEST)),
        Field("replicas", "[]int32", (0, NEWEST), None, nullable=(0, NEWEST), tag=2, tagged=(0, NEWEST)),
        Field("removing_replicas", "[]int32", (0, NEWEST), None, nullable=(0, NEWEST), tag=3, tagged=(0, NEWEST)),
        Field("adding_replicas", "[]int32", (0, NEWEST), None, nullable=(0, NEWEST), tag=4, tagged=(0, NEWEST)),
        Field("leader_recovery_state", "int8", (0, NEWEST), -1, tag=5, tagged=(0, NEWEST)),
        Field("directories", "[]uuid", (1, NEWEST), None, nullable=(1, NEWEST), tag=8, tagged=(1, NEWEST)),
        Field("eligible_leader_replicas", "[]int32", (2, NEWEST), None, nullable=(2, NEWEST), tag=6, tagged=(2, NEWEST)),
        Field("last_known_elr", "[]int32", (2, NEWEST), None, nullable=(2, NEWEST), tag=7, tagged=(2, NEWEST)),
    )),
    7: RecordSchema("FenceBrokerRecord", 0, (
        Field("id", "int32", (0, NEWEST), 0),
        Field("epoch", "int64", (0, NEWEST), 0),
    )),
    8: RecordSchema("UnfenceBrokerRecord", 0, (
        Field("id", "int32", (0, NEWEST), 0),
        Field("epoch", "int64", (0, NEWEST), 0),
    )),
    9: RecordSchema("RemoveTopicRecord", 0, (
        Field("topic_id", "uuid", (0, NEWEST), bytes(16)),
    )),
    10: RecordSchema("DelegationTokenRecord", 0, (
        Field("owner", "string", (0, NEWEST), ''),
        Field("requester", "string", (0, NEWEST), ''),
        Field("renewers", "[]string", (0, NEWEST), ()),
        Field("issue_timestamp", "int64", (0, NEWEST), 0),
        Field("max_timestamp", "int64", (0, NEWEST), 0),
        Field("expiration_timestamp", "int64", (0, NEWEST), 0),
        Field("token_id", "string", (0, NEWEST), ''),
    )),
    11: RecordSchema("UserScramCredentialRecord", 0, (
        Field("name", "string", (0, NEWEST), ''),
        Field("mechanism", "int8", (0, NEWEST), 0),
        Field("salt", "bytes", (0, NEWEST), b""),
        Field("stored_key", "bytes", (0, NEWEST), b""),
        Field("server_key", "bytes", (0, NEWEST), b""),
        Field("iterations", "int32", (0, NEWEST), 0),
    )),
    12: RecordSchema("FeatureLevelRecord", 0, (
        Field("name", "string", (0, NEWEST), ''),
        Field("feature_level", "int16", (0, NEWEST), 0),
    )),
    14: RecordSchema("ClientQuotaRecord", 0, (
        Field(
            "entity", "[]struct", (0, NEWEST), (),
            fields=(
                Field("entity_type", "string", (0, NEWEST), ''),
                Field("entity_name", "string", (0, NEWEST), '', nullable=(0, NEWEST)),
            ),
        ),
        Field("key", "string", (0, NEWEST), ''),
        Field("value", "float64", (0, NEWEST), 0.0),
        Field("remove", "bool", (0, NEWEST), False),
    )),
    15: RecordSchema("ProducerIdsRecord", 0, (
        Field("broker_id", "int32", (0, NEWEST), 0),
        Field("broker_epoch", "int64", (0, NEWEST), -1),
        Field("next_producer_id", "int64", (0, NEWEST), 0),
    )),
    17: RecordSchema("BrokerRegistrationChangeRecord", 3, (
        Field("broker_id", "int32", (0, NEWEST), 0),
        Field("broker_epoch", "int64", (0, NEWEST), 0),
        Field("fenced", "int8", (0, NEWEST), 0, tag=0, tagged=(0, NEWEST)),
        Field("in_controlled_shutdown", "int8", (1, NEWEST), 0, tag=1, tagged=(1, NEWEST)),
        Field("log_dirs", "[]uuid", (2, NEWEST), (), tag=2, tagged=(2, NEWEST)),
        Field("cordoned_log_dirs", "[]uuid", (3, NEWEST), None, nullable=(3, NEWEST), tag=3, tagged=(3, NEWEST)),
    )),
    18: RecordSchema("AccessControlEntryRecord", 0, (
        Field("id", "uuid", (0, NEWEST), bytes(16)),
        Field("resource_type", "int8", (0, NEWEST), 0),
        Field("resource_name", "string", (0, NEWEST), ''),
        Field("pattern_type", "int8", (0, NEWEST), 0),
        Field("principal", "string", (0, NEWEST), ''),
        Field("host", "string", (0, NEWEST), ''),
        Field("operation", "int8", (0, NEWEST), 0),
        Field("permission_type", "int8", (0, NEWEST), 0),
    )),
    19: RecordSchema("RemoveAccessControlEntryRecord", 0, (
        Field("id", "uuid", (0, NEWEST), bytes(16)),
    )),
    20: RecordSchema("NoOpRecord", 0, ()),
    21: RecordSchema("ZkMigrationStateRecord", 0, (
        Field("zk_migration_state", "int8", (0, NEWEST), 0),
    )),
    22: RecordSchema("RemoveUserScramCredentialRecord", 0, (
        Field("name", "string", (0, NEWEST), ''),
        Field("mechanism", "int8", (0, NEWEST), 0),
    )),
    23: RecordSchema("BeginTransactionRecord", 0, (
        Field("name", "string", (0, NEWEST), None, nullable=(0, NEWEST), tag=0, tagged=(0, NEWEST)),
    )),
    24: RecordSchema("EndTransactionRecord", 0, ()),
    25: RecordSchema("AbortTransactionRecord", 0, (
        Field("reason", "string", (0, NEWEST), None, nullable=(0, NEWEST), tag=0, tagged=(0, NEWEST)),
    )),
    26: RecordSchema("RemoveDelegationTokenRecord", 0, (
        Field("token_id", "string", (0, NEWEST), ''),
    )),
    27: RecordSchema("RegisterControllerRecord", 0, (
        Field("controller_id", "int32", (0, NEWEST), 0),
        Field("incarnation_id", "uuid", (0, NEWEST), bytes(16)),
        Field("zk_migration_ready", "bool", (0, NEWEST), False),
        Field(
            "end_points", "[]struct", (0, NEWEST), (),
            fields=(
                Field("name", "string", (0, NEWEST), ''),
                Field("host", "string", (0, NEWEST), ''),
                Field("port", "uint16", (0, NEWEST), 0),
                Field("security_protocol", "int16", (0, NEWEST), 0),
            ),
        ),
        Field(
            "features", "[]struct", (0, NEWEST), (),
            fields=(
                Field("name", "string", (0, NEWEST), ''),
                Field("min_supported_version", "int16", (0, NEWEST), 0),
                Field("max_supported_version", "int16", (0, NEWEST), 0),
            ),
        ),
    )),
    28: RecordSchema("ClearElrRecord", 0, (
        Field("topic_name", "string", (0, NEWEST), ''),
    )),
}
