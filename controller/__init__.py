"""Decides: link state, placement, promote plans, and where that state is kept.

Nothing here talks Kafka's protocol. Decisions are pure functions (records, reply); only replaying a record
changes state; what has to be done outside goes through the ports of `controller.ports`, which `linker`
implements.

File map: `paths` names in the store, `phases` the state machine as a table, `state` the entities, `operations` a
change as a store takes it, `codec` their JSON, `image` replay, `decisions` pure decisions, `promote_decisions` those
of a promote's steps, `validations` those about what the validator has proved, `manager` what can be asked for,
`stored_controller` decide -> commit -> replay, `store/` the state stores, `cluster_view` the shape of the target's
metadata image, `handover` and `alignment` the pure judgements of a promote, `ports` what it needs done outside,
`promote` jobs and resume, `promote_checks` the steps that can be undone, `promote_source` who else is at the source
meanwhile, `promote_source_fence` closes it, `source_fence` a source that refuses writes, `late_starts` replicas that
lack what the source still has, `promote_handover` the steps that cannot be undone, `promote_forward` the comparison
where there is only forward, `promote_context` what they share, `failover` decisions and judgements of a failover,
`take_over` its steps where they differ from a promote's, `placement`, `producer_ids` and `topic_configs` pure plans,
`replica_plan` and `elections` those over several link brokers, `fleet/` several sidecars as one. Of consumer groups:
`groups` the gates' records, `group_phases` the table, `group_codec` and `gate_codec` their JSON, `group_decisions`
which groups there are and their promote, `group_sync` offsets.
"""
