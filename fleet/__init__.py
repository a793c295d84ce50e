"""Several sidecars as one: who decides, who may acknowledge, and where the state is kept.

- `balancer`: keeps the link brokers of every mirror partition, and who of them leads, as the plans want it
- `balancer_ports`: what the balancer is given and needs done: Protocols that `linker` implements over head and target
- `channel`: how a member and the head talk: JSON messages, in order, whole or not at all, until the channel closes
- `commands`: has commands carried out by every sidecar that matters: fences, and what is told around a hand-over
- `fleet_controller`: the link controller's side of the fleet: takes members, proves their leases, sends them what was
  committed, and writes the changes that they ask for
- `lease`: who may acknowledge a write that the source has taken
- `link_controller`: what can be decided, and what whoever asks for it has to give
- `member`: A sidecar's part as one of a fleet: its lease, its copy of the state, and the commands of the head
- `messages`: what members and the head say to each other, checked field by field when it arrives
- `progress`: what the sidecars know of the copies they lead, as it travels, and the promote's view of all of it
  together
- `roles`: which role is played when: every sidecar is a member of whoever holds the seat, and stands for the seat
  itself
- `roster`: who is in the fleet: the sidecars that are connected, those that were, and whose lease may still hold
- `route`: which sidecar answers a request of an operator
- `settings`: the fleet's durations, in seconds, with the reason for each default
- `shared_controller`: the link controller as the rest of a sidecar sees it, in whatever role the sidecar is
- `stored_controller`: decides, one at a time: decide -> commit -> replay, so memory never runs ahead of the store
- `stores/`: state stores: `sqlite` for one sidecar; ZooKeeper, or a topic of the target, for a fleet
- `transport/`: messages between sidecars over TCP, with mutual authentication
"""
