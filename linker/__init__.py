"""The sidecar process: config, CLI, admin API, membership in the target cluster, supervision, metrics.

File map: `cli/` the command line (`__main__`), `doors` for a quick start; `config_file` reads the
configuration, `config`, `config_store` and `config_validation` say what may be in it, `properties` and `secrets` how
clusters are named and trusted, `link_secrets` what a link may refer to; `sidecar` puts everything together and takes
it apart, `local_checks` what must not fail after the target has heard of it. `target/` membership in the target
cluster, `fleet/` the sidecars as one, `stores/` where their state is. `links/` each link at work, `groups/` its
consumer groups, `upstreams` its clients' way to real brokers, `validation/` its proof, `children` and
`die_with_parent` the process of that. `admin/` the HTTP API and its client, `service/` what is behind it,
`preflight`, `examination` (`examination_alone` before there is a sidecar), `clocks`, `cluster_addresses` and
`checks/` what is checked first, `by_hand` what is left to an operator. `running` is what others see of a
sidecar. `snapshot` collects and `samples` holds the
numbers that `metrics` prints; `logs`, `tasks` what all of them use, `heap` gives memory back.
`examination_group_kinds` looks for groups that are not held, `shown_id` shows ids of others;
`private_files`, `own_certificates` and `descriptors` look after the process. `demo/` the demonstration, and the clusters
that tests run on.
"""

__version__ = "0.1.0"
