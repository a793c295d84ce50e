"""The sidecar: configuration, command line, membership, links, promotes and supervision, put together.

- `__main__`: `python -m linker`
- `access/`: rights, quotas and users of a link's clients: read at both clusters, compared, carried to the target
- `checks/`: checks: before a change, by doctor, and in the dry run of a promote
- `cli/`: the command line: `linker`
- `config/`: the configuration file: sections, properties, secrets, and checks of them
- `evictor`: takes partitions back to real brokers that a source without cordons placed on its link brokers
- `fleet/`: the fleet's ports over this process: router, fetcher, target and transport
- `joined_sources`: the sources that this sidecar joins as a broker, beside the target: one link broker for each link that
  asks for it
- `link_broker`: LinkBroker is the sidecar as a broker of one cluster: membership, listeners, followers' side and router of
  it
- `link_broker_settings`: how the sidecar reaches one cluster, and how that cluster reaches it
- `links/`: one link at work: its source, its mirrors, and their copies at the target
- `manual_steps`: commands that an operator has to run at a cluster where the sidecar cannot
- `membership/`: membership in the target cluster: the sidecar as a broker of a KRaft cluster
- `process/`: the sidecar's own process: logging, files, children, memory, early listeners
- `promote/`: a promote or a failover from the first check to the last AlterPartition
- `running`: a sidecar as it runs, for the admin API's service, the link controller's duties and the metrics
- `service/`: the service behind the admin API: requests become checks, decisions and work for the links
- `sidecar`: the sidecar process: fleet, membership, listeners, links and admin API put together, and taken apart in
  order
- `snapshot`: all numbers of one moment for the metrics page, read from what runs
- `source_brokers`: the link broker of a link's source, and its part: the links that run the other way mirror into that
  cluster
- `source_identity`: the identity in a source that is joined: where it is kept, and how the sidecars of a fleet know each
  other there
- `start_admin`: the admin API of a sidecar, put together when everything else serves
- `stores/`: state stores as the configuration names them
- `switch/`: link brokers take topics over in the cluster whose brokers lead them, and give them back
- `validation/`: the validator's work inside the sidecar; only the link controller has it done
- `zookeeper/`: membership in a cluster that is run by ZooKeeper: sources before KRaft, that is
"""

__version__ = "0.1.0"
