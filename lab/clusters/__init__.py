"""Real clusters, on loopback or in containers: brokers, sidecars and child processes.

- `child_process`: a child process under control: started so that it dies with us, stopped, killed, paused, measured
- `kafka_cluster`: real Kafka clusters as child processes: KRaft controllers and brokers on 127.0.0.1, each under
  control
- `kafka_containers`: Kafka clusters and the sidecar in containers: Kafka's official images, and the image of
  deploy/Dockerfile
- `kafka_jars`: A Kafka distribution on this machine: jars through Maven, made ready once and kept in a cache
  directory
- `makers`: One interface for a laboratory's clusters and sidecar, and the maker that takes jars on loopback
- `ports`: TCP ports of 127.0.0.1 that stay ours, also while the node that uses them is down
- `sidecar_process`: the sidecar as a child process, and the command line as its operator uses it
"""
