"""The client side of Kafka: connections, clusters, authentication.

- `certificates`: the end of a certificate's validity, read from PEM text
- `channel`: one socket: pipelined requests out, replies in the order of the requests
- `cluster`: one cluster: metadata, leaders, calls that are retried
- `cluster_connections`: the connections to a cluster's nodes, kept per node and purpose
- `cluster_identity`: the cluster id that an address answers with, checked on every new connection
- `cluster_metadata`: nodes, topics and leaders as Metadata answers told them
- `connecting`: the socket of a channel: TCP or TLS to one address
- `connection`: one authenticated connection: ApiVersions, SASL, typed calls
- `coordinators`: coordinators of groups and transactional ids: found for many callers, and called wherever they move
- `kept_connections`: connections that are kept per place and purpose, and opened again after they died
- `places`: cache of coordinators: key -> node, forgotten when unused
- `properties`: the Kafka client properties that a cluster or a link accepts
- `retry`: the meaning of an error for the next try, as one table, and the one loop that tries again
- `sasl`: SASL PLAIN and SCRAM
- `secrets`: references such as ${env:NAME} and ${file:/path}: resolved, recognised, redacted
- `security`: TLS and SASL settings from Kafka's property names
- `topic_names`: the names that we have for a cluster's topics where they are not its own: a prefix and its own
- `waiting`: waiting for an event with a time limit
"""
