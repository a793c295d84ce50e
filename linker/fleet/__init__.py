"""The fleet's ports over this process: router, fetcher, target and transport.

- `clock`: the clock of leases
- `departures`: sidecars that leave the fleet, or are gone for good: the link controller's part, and the leaving
  sidecar's own
- `fleet`: this sidecar's place in its fleet, put together: store, process, member, runner, and where other sidecars
  connect
- `hand_overs`: the moment between a hand-over in the metadata log and the last broker that knows of it, on one
  sidecar
- `leadership`: fleet.balancer_ports.BalancerPorts over the head, the links and the target
- `ports`: what the fleet does to this sidecar, and what its router asks of the fleet: three small adapters
- `process`: what a sidecar of a fleet keeps in its state directory: that it is the only process there, and who it is
- `reign`: what only the link controller does: links decide, leadership is balanced, those that leave are seen off
"""
