"""Kafka's wire protocol: bytes, messages, connections and listeners, and no decision about links.

- `backoff`: the waits between tries, for everybody who tries again
- `client/`: the client side of Kafka: connections, clusters, authentication
- `errors`: every error that this package raises
- `frames/`: frames, record batches and the messages of the hot path
- `histogram`: counts of latencies in buckets, for a metrics page
- `metadata/`: records of the KRaft metadata log, and the image of the cluster that they add up to
- `periodic_task`: one thing that is done again and again, and how well that goes
- `schema/`: messages by their schema, for everything outside the hot path
- `server/`: the server side of Kafka: listeners, accepted connections and their limits
- `shown_id`: topic names, group ids and the like as they are shown to people, quoted where they could mislead; long lists
- `task_group`: asyncio.TaskGroup with the cancellation fixes of Python 3.13
- `together`: several awaitables at once, with the first error raised as itself
- `transport/`: the parts of a socket that client and server connections share
"""
