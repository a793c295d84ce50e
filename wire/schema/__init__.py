"""Messages by their schema, for everything outside the hot path.

- `codec`: requests from dicts, responses as kio's schema entities
- `entity_fields`: form and default of each field of kio's entities
- `entity_reader`: a reader of kio's entities that is safe with hostile bytes
- `fast_messages`: the large or urgent messages that have a codec of their own
"""
