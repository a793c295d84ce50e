"""Messages by their schema, for everything that is not on the hot path.

- `codec`: requests and responses as plain dicts in, kio's schema entities out
- `entity_fields`: what kio's entity dataclasses say about their fields: shape and default
- `entity_reader`: reads kio's entities from bytes that may be hostile
- `fast_messages`: messages that are encoded and decoded by hand because there are thousands of things in them, or
  producers wait meanwhile
"""
