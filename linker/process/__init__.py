"""The sidecar's own process: logging, files, children, memory, early listeners.

- `children`: child processes that end with us: the command and the environment that `die_with_parent.py` needs, and
  where a child finds this very package
- `clocks`: how far the clocks of a cluster's brokers are from ours, as far as the protocol tells
- `descriptors`: whether the process runs out of file descriptors: the kernel then refuses connections without a
  reason
- `die_with_parent`: `python die_with_parent.py COMMAND...`: a command that the kernel kills when whoever started it
  dies
- `early_bind`: the client listeners' sockets, bound before everything else that a process has to load
- `heap`: memory that the C library keeps after a burst, given back to the system
- `logs`: structlog and the standard library through one pipeline to stderr, secrets redacted
- `own_certificates`: the certificates that this sidecar shows others, and when each of them ends (metric
  linker_certificate_expiry_seconds)
- `private_files`: permissions: only the sidecar's user may read its files
- `state_files`: small JSON files of the state directory: read whole or refused, written whole or not at all
- `upstreams`: raw channels to real brokers of the target, one for each client: what the client says is relayed on
  them, its login too
"""
