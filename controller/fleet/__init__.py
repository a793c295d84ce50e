"""Several sidecars as one: leases, fences and who writes.

Every sidecar is a `Member`; the one that holds the store's seat also runs the `Head` (the link controller).
Messages between the two go through a `Channel`; what opens one, and what a fence does to a router, is
`linker`'s. Nothing here knows Kafka's protocol or a socket, so the simulation runs these very classes.

File map: `lease` the arithmetic of leases on both sides, `messages` what is said, `channel` how it is
carried, `member` and `head` the two roles (of the head: `roster` who is there, `commands` what all have to
do), `fencing` and `progress` the promote's ports over a whole fleet, `shared` the controller as the rest of a
sidecar sees it in either role, `runner` which role is played when, `balancer` leadership over the link
brokers.
"""
