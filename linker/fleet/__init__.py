"""What a fleet is made of on one sidecar: sockets, clocks, files, and what its decisions do to the router.

The rules are `controller.fleet`'s; here is what they stand on.

File map: `fleet` puts a sidecar's part together, `ports` what the fleet does to it and its router asks of the fleet,
`hand_overs` what its clients are told when real brokers lead, `reign` what runs while it is the link controller
(`leadership` who leads what, `departures` who leaves), `route` which sidecar answers an operator,
`process` what it keeps in its state directory, `clock` the clock of leases, `transport` channels over TCP between
sidecars, `framing` one such connection, `handshake` how both ends prove the shared secret.
"""
