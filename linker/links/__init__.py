"""One link at work: its source cluster, its mirrors, the producer-id guard, and the ports that a promote needs.

Lives here: what has to *happen* so that the controller's state and the target cluster agree. Does not live here: deciding
(controller), copying (fetcher), forwarding (router), membership in the target (linker.target).
"""
