"""Found before the real one by a sidecar of a test or a demo, which is to load what an installed one loads.

kio imports hypothesis wherever there is one: a fifth of a second and 8 MiB for each process and command.
"""

raise ImportError("hypothesis is for tests; a sidecar is installed without it")
