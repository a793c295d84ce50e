"""The fleet's ports over this process: router, fetcher, target and transport.

- `clock`: the clock of leases
- `departures`: removal of sidecars that leave or are gone for good: the link controller's part and the leaving
  sidecar's
- `fleet`: this sidecar's place in its fleet, put together: store, process, member, runner, listener for other
  sidecars
- `hand_overs`: from a hand-over in the metadata log until every real broker knows of it, on one sidecar
- `identity`: keeps the identity of the sidecar in each cluster of which it is a broker
- `leadership`: `fleet.balancer_ports.BalancerPorts` over the fleet controller, the links and the target
- `ports`: three adapters: the router's lease, fences from the state, and the member's commands
- `process`: the lock of the state directory, and the sessions of the processes that had it
- `duties`: tasks of the link controller only: link decisions, balancing of leadership, removal of leaving sidecars
"""
