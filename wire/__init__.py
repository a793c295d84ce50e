"""Kafka's wire protocol without any decision about links: bytes, messages, connections and listeners.

- `client/`: kafka's client side: one connection, one cluster, and how it is logged in to
- `errors`: every error the wire package raises
- `frames/`: bytes and messages of the protocol, read and written without a copy where the hot path goes
- `metadata/`: kRaft's metadata log: records decoded by generated tables, and the image of the cluster they add up to
- `schema/`: messages by their schema, for everything that is not on the hot path
- `server/`: kafka's server side: listeners, connections and their limits
- `shown_id`: an id that somebody else has chosen, shown so that it cannot be taken for another one
- `task_group`: asyncio.TaskGroup, without what Python 3.11 and 3.12 do with a cancellation that comes while a group
  is failing
- `together`: structured concurrency with plain errors: run several awaitables, and raise the first error as itself
"""
