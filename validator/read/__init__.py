"""Reading batches and records of a named replica, in Spark's executors.

- `endpoint`: one side of a comparison: how its cluster is reached, and errors that say which side and which address
  failed
- `fetching`: the Fetch request with which single brokers are asked for what their own logs hold, in the driver and in
  the sidecar
- `kafka_source`: spark's own Kafka connector (spark-sql-kafka): how it comes into a running session, and what it is
  told to read
- `ranges`: which offsets of which replica are compared with the source's, and how they are cut into spans, tasks and
  groups
- `reader`: reads spans of logs from the brokers that hold them, as Arrow batches of headers
- `reading`: a span that is being read: which node is asked, for how much of it, and what an answer brings
- `session`: the Spark session of a validator process: embedded by default, any master on request
- `shipping`: ships this project's own packages to executors on other machines, as one zip on their Python path
- `source`: `spark.read.format("kafka-batches")`: one row per record batch of a named replica, as a PySpark 4 Python
  data source
- `spans`: pieces of replicas' logs to read, and the walk over the bytes a broker answered with
- `survey`: finds out what there is to compare: ends and starts of the source and of every replica, asked of each
  itself
"""
