"""Source to window to follower: fetches each mirror partition once, and serves it to the target's own followers.

- `budget`: one memory budget for all windows of the process and for source fetches in flight
- `cursor`: A lane: one reading position in a source partition, its window, and the followers it serves
- `cursor_session`: the lanes of one source fetcher, and what its fetch session asks for them
- `cursors`: the lanes of one mirror partition: which follower reads from which window
- `directory`: the mirror partitions of this process by what a follower or client asks with: topic id or name, and
  index
- `doubts`: before a mirror partition fails because of where a follower says it is: is it so?
- `epochs`: the source's leader epochs as our copy has them: where each one begins
- `error_table`: what each error of a source fetch means for the partition: a table, and nothing else
- `fetch_session`: the client's side of one incremental fetch session (KIP-227) to one source node
- `follower_answers`: what a follower is told about one partition: the rules of a leader whose log is the source's
- `follower_offsets`: listOffsets and OffsetForLeaderEpoch as followers ask them (replica ids from 0 up)
- `follower_sessions`: the server's side of incremental fetch sessions (KIP-227) of followers
- `followers`: serving the target's stock followers: Fetch with sessions and long polls
- `idle_partitions`: lanes without records are asked for by a fetcher of their own, the quiet sibling of the busy one
- `join`: whether the source still has the batch that a lane read last, where its cache of leader epochs cannot tell
- `link_fetcher`: which source node serves which partition of a link, and what happens when it does not
- `pace`: when a source fetcher sends its next request, and for how long the source may wait with the answer
- `partition_copy`: one mirror partition: what is known of its source, and its followers' progress
- `progress`: how far one follower has copied a partition, by its own fetches
- `resolve`: source metadata for mirror partitions: is it still the same topic, who leads it, where does its log begin
  and end
- `resolve_queue`: the order in which partitions are resolved: batches, one turn at a time, nobody held up by somebody
  else
- `source_connection`: A connection to one source node that is opened anew whenever it has ended, until cancelled
- `source_fetcher`: the fetch session with one source node, on one connection
- `source_owner`: who decides what a source fetcher only notices
- `source_ports`: the sizes and times that a source fetcher is given
- `source_rate`: how fast a link may read its source: its limit, and what is left to it while clients write
- `source_records`: the records of a fetch answer as chunks of a window: the leader epoch stamped in place, nothing
  copied without need
- `sources`: the fetchers of one link: begun where a lane is placed, ended when nothing is left that they could be
  asked for
- `spec`: what the composing process tells the fetcher about a mirror partition, and what the fetcher tells it back
- `throttle`: how fast something may be read: a token bucket
- `window`: the read-ahead window: consecutive chunks of whole batches between the slowest reader and the source
"""
