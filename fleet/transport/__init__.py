"""Messages between sidecars over TCP, with mutual authentication.

- `connections`: control connections between sidecars: listening, connecting, and letting nobody in who does not know
  the secret
- `framing`: one control connection: JSON messages behind a four-byte length, big-endian; a fleet.channel.Channel
- `handshake`: both ends of a control connection prove that they know the shared secret, without saying it
"""
