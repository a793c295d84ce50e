"""Target client to source: dispatch, produce forwarding, fetch serving, pass-through, authorization.

File map, as a request goes: `dispatch` who answers it, `client_session` what is kept of its client, `way_in` and
`login` whether that has logged in,
`bare_tokens` how old ones do, `api_versions` what we say we speak, `apis` whose each request is, `passthrough` all that
is not ours, `authorize` what
the client may do. Asked about ourselves: `addressed`, with `broker_resource` our configs; asked of a mirror what it
cannot do: `on_mirrors`; both with `split` for what is partly others'. A write: `produce` and `produce_job` take it
apart, `produce_answers` tells the client, `admission` whether it is forwarded, `express` the usual one, `lanes`,
`batch` and `lane_states` its order, `given_back` what an idempotent producer sends again, `ways` and `forwarder` the
connection to the source, `lease_gate` when its answer may be told, `forwarded` counts. `fence` holds writes, `hub`
what all clients share, `budget` its bytes, `leadership` and `carrying` what comes after a hand-over, `txn_markers`
markers from the target. A read: `consumer_fetch` and `fetch_job`, `fetch_decision` what needs no data, `fetch_source`
what the source is asked, `unread` answers that nobody takes, `first_fetches` where clients begin, `held_readers` who
finds a topic empty, `offsets` ListOffsets, `turns` large requests one after the other. `ports` what `linker` provides,
`tasks` its own tasks.
"""
