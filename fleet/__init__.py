"""Several sidecars as one: which one decides, which may acknowledge, and where the state is kept.

- `asked_changes`: changes that members ask the link controller to write
- `balancer`: carries out the plans for the link brokers of every mirror partition and for their leader
- `balancer_ports`: Protocols of the balancer's inputs and actions; `linker` implements them
- `by_topic`: decisions for many topics, committed in portions
- `channel`: the connection of a member with the link controller: JSON messages, in order, whole or not at all
- `commands`: commands to all sidecars that matter: fences, and the steps around a hand-over
- `fleet_controller`: the link controller's side of the fleet: takes members, proves their leases, sends deltas,
  writes requested changes
- `lease`: which sidecars may acknowledge a write that the source has taken
- `link_controller`: every decision about link state, with its arguments
- `member`: a sidecar's part in the fleet: its lease, its copy of the state, the commands it carries out
- `messages`: messages between members and the link controller, checked field by field on arrival
- `progress`: reports about the copies that sidecars lead, and the promote's view of all of them
- `roles`: the role of this process: member always, and candidate for link controller
- `roster`: sidecars of the fleet: connected, gone, and those whose lease may still hold
- `route`: the sidecar that answers an operator's request
- `settings`: durations of the fleet in seconds, with the reason for each default
- `shared_controller`: the link controller as the rest of a sidecar sees it, local or elsewhere
- `stored_controller`: decide -> commit -> replay, one decision at a time, so memory never runs ahead of the store
- `stores/`: state stores: `sqlite` for one sidecar; ZooKeeper, or a topic of the target, for a fleet
- `transport/`: messages between sidecars over TCP, with mutual authentication
"""
