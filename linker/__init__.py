"""The sidecar process: config, CLI, admin API, membership in the target cluster, supervision, metrics."""
