"""The service behind the admin API: requests become checks, decisions and work for the links.

- `access`: rights, quotas and users of a link's clients: compared, and carried to the target
- `base`: look-ups and helpers that all parts of the service share
- `failovers`: planning and starting failovers: for a source that is dead
- `fleet`: the fleet as people drive it: draining and leaving
- `group_status`: groups as shown to people: durable state joined with the running managers
- `groups`: consumer groups: showing them, and asking for promotes and demotes
- `links`: creating, changing and deleting links
- `mirrors`: creating, pausing and deleting mirrors
- `overview`: all links as a whole: status, lag, doctor
- `promote_plans`: the plan of a promote, and the checks before it is started
- `promotes`: starting and showing promotes
- `reassigns`: moving the replicas of mirrors to other brokers of the target
- `repairs`: repairing a mirror whose leadership at the target was lost or taken
- `restores`: restoring sources after a failover: what they have beyond it, and asking for it
- `sidecars`: the sidecars of a fleet and its link controller, as people see them
- `source_joins`: the sidecars as brokers of a link's source: refused before they join or leave, shown, and checked by
  doctor
- `switches`: switching topics between the two clusters of a link, and the sync that a switch needs
- `tasks`: periodic tasks as shown to people: in the status, and as checks of the doctor
- `topology`: the clusters that the sidecar's links reach, and the ways that topics come
- `validations`: starting, following and ending validations; the continuous one is an option of its link
"""

from linker.service.access import AccessChanges
from linker.service.failovers import Failovers
from linker.service.groups import Groups
from linker.service.links import LinkChanges
from linker.service.mirrors import MirrorChanges
from linker.service.overview import Overview
from linker.service.reassigns import MirrorReassigns
from linker.service.repairs import MirrorRepairs
from linker.service.restores import RestoreRequests
from linker.service.topology import TopologyView


class SidecarService(
    LinkChanges,
    MirrorChanges,
    MirrorReassigns,
    MirrorRepairs,
    RestoreRequests,
    Failovers,
    Groups,
    AccessChanges,
    Overview,
    TopologyView,
):
    """The service of one sidecar."""
