"""The parts of a socket that client and server connections share.

- `gathering`: writes that are gathered while one read is handled: one system call per connection
- `low_water`: SO_RCVLOWAT: the event loop wakes only when enough of a large frame has arrived
"""
