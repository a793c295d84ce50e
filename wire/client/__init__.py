"""Kafka's client side: one connection, one cluster, and how it is logged in to.

- `certificates`: when a certificate ends, read from its PEM text: the standard library tells that of peers only
- `channel`: client side of one socket: pipelined requests out, replies back in the order the requests left
- `cluster`: A Kafka cluster as a client sees it: who is there, who leads what, and connections to all of them
- `cluster_connections`: the connections to a cluster's nodes: kept per node and purpose, opened again when they died
- `cluster_identity`: which cluster an address answers for: an address that was reused, a DNS name or a load balancer
  may lead to another one
- `cluster_metadata`: what a client knows of a cluster, fed by Metadata answers
- `connecting`: how a channel gets its socket: TCP or TLS to one address
- `connection`: one authenticated client connection: TCP or TLS, ApiVersions, SASL, then typed calls by the highest
  common version
- `gathering`: what is written while one read is worked on leaves together: one system call per connection, not one
  per request
- `properties`: kafka's client property names that a cluster section or a link may have, and how their values must
  look
- `sasl`: the client side of SASL: PLAIN and SCRAM, inside SaslHandshake v1 and SaslAuthenticate
- `secrets`: secrets by reference: resolve ${env:NAME} and ${file:/path}, tell sensitive keys, redact what is shown
- `security`: how a connection or a listener is protected, from Kafka's own property names
- `waiting`: waiting for something to change, no longer than so long
"""
