"""Source to window to follower: fetches each mirror partition once and serves it to the target's stock
followers.

File map, as the data go: `spec` what is asked for, `directory` and `mirror_partition` what is known of it; `manager`
which source node serves what, `resolve` and `resolve_queue` find that out, `fetchers` who is at work.
`source_fetcher` the session with a node (`source_ports` and `source_owner` what it is given,
`source_connection` its connection),
`source_session` and `lane_session` what it asks for, `pace`, `source_rate` and `throttle` when, `change_over` which
partitions its quiet sibling asks for. `source_records` takes records in, `error_table` an error, `epochs` keeps where
the source's leaders began, `join` what is asked where they began again, `window` the records, within `budget`; `lane`
and `lanes` who reads which window. `followers` serves them, `fetch_sessions`, `follower_answers` and
`follower_offsets` what they are told, `progress` how far they are, `doubts` whether that is so.
"""
