"""Consumer groups of a link at work: discovery at the source, offsets, gates at the target, promote.

Lives here: what has to happen at the two clusters' group coordinators. Does not live here: deciding
(controller), and which consumer may read what before promote (router).
"""
