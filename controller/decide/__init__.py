"""Decisions: functions of the image that return records, and refuse by raising.

- `failovers`: A failover, judged and decided: the source is dead, and the target takes over at what its replicas have
- `groups`: decisions about mirrored groups: pure functions of the image that answer with records
- `mirrors`: pure functions of the image that answer with records and change nothing
- `promotes`: decisions about promotes and their steps: pure functions of the image, as in `decisions`
- `source_fence`: A source that refuses writes while a topic is promoted (`--fence-source`): when, and how that is
  undone
- `validations`: decisions about what the validator has proved: pure functions of the image, as in `decisions`
"""
