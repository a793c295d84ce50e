"""Kafka's wire protocol without any decision: framing, codecs, connections, listeners, metadata records.

Nothing here knows about links, mirrors or promotes; those packages import this one, never the other way
round.
"""
