"""Real clusters on loopback: brokers, sidecars and child processes.

- `child_process`: a child process under control: started so that it dies with us, stopped, killed, paused, measured
- `kafka_cluster`: real Kafka clusters as child processes: KRaft controllers and brokers on 127.0.0.1, each under
  control
- `kafka_jars`: A Kafka distribution on this machine: jars through Maven, made ready once and kept in a cache
  directory
- `ports`: TCP ports of 127.0.0.1 that stay ours, also while the node that uses them is down
- `sidecar_process`: the sidecar as a child process, and the command line as its operator uses it
"""
