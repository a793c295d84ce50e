"""The server side of Kafka: listeners, accepted connections and their limits.

- `accept_loop`: the one accept loop of all listeners
- `acceptor`: accepting for clients, where a connection counts before its TLS handshake
- `connection`: one accepted connection: cuts requests, sends answers in request order
- `limits`: the bounds of a listener and of its connections
- `listener`: a listener: accepts connections, counts them, closes them
- `partial_frames`: the memory budget of requests that have not arrived in full
- `patience`: the times after which a silent, strange or idle connection is closed
- `rate_limited_log`: log lines that a peer can cause, limited per minute
"""
