"""The configuration file: sections, properties, secrets, and checks of them.

- `check`: the section `validation` of the configuration: how a promote uses the validator, and where its Spark runs
- `cluster_addresses`: the addresses by which a cluster is found: which of them lead nowhere, or to another cluster
- `file`: reading the configuration file: YAML, secrets resolved, every mistake one line that names the key
- `link_secrets`: limits on the secrets that the properties of a link may refer to
- `listeners`: client listeners of a link broker as a section of the configuration gives them: addresses, protocols,
  certificates
- `model`: the sidecar's configuration: one YAML file, checked whole before anything is started
- `source_section`: the section `sources` of the configuration: the sidecar as a broker of a link's source, beside the
  target
- `store_section`: the sections of the configuration that a fleet needs: where the link state is, and how sidecars
  watch each other
"""
