"""Gates: members and transactions of ours in a target group, which keep its consumers waiting.

- `base`: the contract of a gate, and its errors
- `classic`: member of the classic protocol: it leads the group and never joins a second rebalance
- `codes`: the coordinators' error codes: which may be retried, and which right a refused request lacks
- `consumer`: member of the consumer protocol (KIP-848): it owns every partition and never gives one back
- `coordinators`: coordinators of the target: one pipelined connection each, shared by all groups
- `factory`: new gates, and gates rebuilt from the records of another sidecar
- `gate`: a member and a transaction as one gate: one keeps clients from partitions, the other from offsets
- `ledger`: the gate's record, made durable before the step that needs it; shared by the gate's halves
- `member_part`: the member (`MemberPart`) of a gate, and the gate that is only a member
- `pieces`: commits of very many partitions, cut so that each piece fits into one batch of __consumer_offsets
- `requests`: requests of every kind of gate: describe a group, commit, read committed offsets
- `settings`: durations and retries of gates
- `streams`: member of the streams protocol (KIP-1071): it owns every task and never gives one back
- `topology`: the topology of a streams group, exactly as its application sends it
- `transaction`: the gate that is only a transaction: its stages
- `transaction_calls`: requests of a gate's transaction, and the meaning of their error codes
- `transaction_part`: the transaction of a gate: the group's offsets are pending in it, so readers of stable offsets
  wait
"""
