"""Whether the client of a SASL listener has logged in, as far as the real broker's answers tell.

The broker alone knows. A token taken without an error ends the exchange for some mechanisms only: a broker
answers a bad OAUTHBEARER token with error 0 and a challenge that says why (RFC 7628), and the first step of SCRAM succeeds
for everybody. Before the login nothing is served here, not even "there is no such topic".

Lives here: the state of one connection's login. No I/O: who asks the broker is dispatch.py.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

# By mechanism: how many tokens the broker has to take.
_STEPS: Final = {"PLAIN": 1, "SCRAM-SHA-256": 2, "SCRAM-SHA-512": 2}
_OAUTHBEARER: Final = "OAUTHBEARER"
#: Mechanisms of which it is known here when their exchange is over.
KNOWN: Final = frozenset({*_STEPS, _OAUTHBEARER})


class LoginState(Enum):
    STRANGER = auto()
    UNPROVEN = auto()
    """The broker has taken a token of a mechanism that is not known here. The login is proved by its next answer
    that nobody gets without one: a broker in the middle of an exchange refuses everything but tokens."""
    DONE = auto()


class Login:
    """Told of answers in the order in which the broker gave them, never of requests: a client may send several at once."""

    __slots__ = ("_mechanism", "_steps", "state")

    def __init__(self, needed: bool) -> None:
        self.state = LoginState.STRANGER if needed else LoginState.DONE
        self._mechanism: str | None = None
        self._steps = 0  # that are still to be accepted

    @property
    def done(self) -> bool:
        return self.state is LoginState.DONE

    def handshake_accepted(self, mechanism: str) -> None:
        """SaslHandshake. A client that is logged in stays so: the login is being renewed."""
        self._mechanism = mechanism
        self._steps = _STEPS.get(mechanism, 0)
        if not self.done:
            self.state = LoginState.STRANGER

    def token_accepted(self, answer: bytes) -> None:
        """SaslAuthenticate without an error; the bytes that the broker gave back."""
        if self.done or self._mechanism is None:
            return
        if self._mechanism in _STEPS:
            self._steps -= 1
            if self._steps <= 0:
                self.state = LoginState.DONE
        elif self._mechanism == _OAUTHBEARER:
            if not answer:
                self.state = LoginState.DONE
        else:
            self.state = LoginState.UNPROVEN

    def served(self) -> None:
        """The broker has answered, without an error, something that it answers to nobody in the middle of an exchange."""
        if self.state is LoginState.UNPROVEN:
            self.state = LoginState.DONE
