"""The admin API's service (linker.admin.service.LinkService): requests become checks, decisions of the link controller, and
work for the link runtimes.

Reading a link's state is in linker.links.status, checks are in linker.preflight; here is the order of things, and that a
refused request has changed nothing.
"""

from linker.service.failovers import Failovers
from linker.service.groups import Groups
from linker.service.links import LinkChanges
from linker.service.mirrors import MirrorChanges
from linker.service.overview import Overview
from linker.service.promotes import Promotes
from linker.service.repairs import MirrorRepairs


class SidecarService(LinkChanges, MirrorChanges, MirrorRepairs, Promotes, Failovers, Groups, Overview):
    """The service of one sidecar."""
