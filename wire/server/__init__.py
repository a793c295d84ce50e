"""Kafka's server side: listeners, connections and their limits.

- `connection`: one accepted connection of a listener: cuts requests, and sends answers in request order
- `listener`: the listener side: accepts connections, counts them, and closes
- `low_water`: how much must have arrived before the event loop is woken for it: SO_RCVLOWAT on a socket that receives
- `partial_frames`: what has come of requests that are not whole yet, of all connections in one budget
- `rate_limited_log`: log lines that a stranger can cause, as often as he likes: some of them a minute, the others by
  their number
- `tls_acceptor`: accepting on TLS listeners: a connection counts from the moment it is accepted
"""
