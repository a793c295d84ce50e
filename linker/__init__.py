"""The sidecar process: config, CLI, admin API, membership in the target cluster, supervision, metrics."""

__version__ = "0.1.0"
