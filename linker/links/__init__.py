"""One link at work: its source, its mirrors, and their copies at the target.

- `bring_up`: makes the target look as the controller's state says, mirror by mirror, and keeps it so
- `config_keeper`: while a topic is mirrored, its configs at the target are those that its source means
- `configs`: topic and broker configs as a cluster's brokers tell them (DescribeConfigs)
- `copies`: A link's copies, wherever they are led: our own fetcher's, or what another sidecar has reported of its
- `copy_specs`: what a fetcher is told of a partition that is copied (MirrorSpec), and where a new copy begins
- `due`: which mirror of a link is looked at next: who waits for nothing first, what is in trouble after a pause of
  its own
- `forks`: a real broker of the target led a mirror partition without a promote, and took writes that the source lacks
- `group_options`: A link's options about groups, read from what is stored of the link
- `head_tasks`: what a sidecar does for a link only while it is the head: tasks that end with that, wherever they
  stand
- `kafka_version`: which Kafka a cluster runs, as far as its answers tell: for the evidence
- `leaderless`: mirror partitions that KRaft has no leader for although their link broker is there: found, and led
  again, with the copies
- `link_groups`: the groups of a link put together: readers, gates and manager, made anew with each term as link
  controller
- `mirrors`: mirrors as the router and the followers see them: state of the controller, the target's image and the
  fetcher, joined
- `producer_ids`: keeps the producer ids of source and target apart for the life of a link
- `producer_view`: what was found of the source's producers, as people are shown it
- `proved`: what is proved of a link, as people are shown it: watermarks with their age, runs, evidence
- `reads`: which consumers may read a link's mirrors before their promote: the link's options, decided per client id
- `replica_ends`: offsets as single brokers tell them, leader or not: the latest one is then the broker's own log end
  offset
- `replica_starts`: where the replicas' logs start, as their brokers tell, leader or not: for a promote
  (linker.promote.ports.ReplicaStarts), and looked at now and then for people, who should not hear of it first when
  they promote
- `running`: the links that run in this process, by name: started, stopped, begun again, and following what other
  sidecars decide
- `runtime`: one link's tasks in one place, from the first connection to the source to the last promote
- `source`: A link's source as its Kafka client properties name it, with the secrets resolved as they are now
- `source_alive`: whether a source still answers: for a failover, which is wrong while it does
- `source_events`: what the fetchers of a link report, written to the controller's state in order
- `source_ids`: how far a source's allocator of producer ids is, as far as this sidecar knows
- `source_watch`: looks at the source's topics now and then for what no fetch would show: partitions that were added
- `source_writers`: who writes to the source without the sidecar, and whose transactions are open there
- `status`: links, mirrors and partitions as people are shown them: the controller's state joined with what runs now
- `throttle`: how fast this sidecar may read a link's source, as the state has it, changed while it runs: its part of
  the link's limit, and how it gives way to clients' writes
- `times`: wall clock milliseconds, as the link state has them, for people
- `topic_shape`: A mirror's topic as the target's metadata shows it, and as it is first made: pure questions of
  bring_up.py
- `traffic`: what a link has fetched, served and forwarded: by this process, and by all sidecars of the fleet
"""
