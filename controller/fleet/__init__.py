"""Several sidecars as one: leases, fences and who writes.

Every sidecar is a `Member`; the one that holds the store's seat also runs the `Head` (the link controller).
Messages between the two go through a `Channel`; what opens one, and what a fence does to a router, is
`linker`'s. Nothing here knows Kafka's protocol or a socket, so the simulation runs these very classes.

File map: `runner` which role is played when, `member` and `head` the two roles (of the head: `roster` who is
there, `commands` what all have to do, fences above all), `messages` what is said, `channel` how it is carried,
`lease` the arithmetic of leases on both sides, `settings` the fleet's times, `shared` the controller as the rest
of a sidecar sees it in either role, `progress` a promote's view of all copies, `balancer` leadership over the
link brokers, `balancer_ports` what that needs done.
"""
