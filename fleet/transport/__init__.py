"""Messages between sidecars over TCP, with mutual authentication.

- `connections`: listens and connects; a peer that does not know the secret is refused
- `framing`: one connection as a `fleet.channel.MemberChannel`: JSON messages behind a four-byte length, big-endian
- `handshake`: both ends prove that they know the shared secret without sending it
"""
