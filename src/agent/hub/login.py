"""Who may use the pages: one name and password, a signed cookie for who has shown them, a token for each session.

A cookie is sent along by a browser whoever made the page that asks. `SameSite=Strict` does not keep out other programs
on the same machine's name (ports do not count), so that every change also needs the session's token, which only our own
pages know. Nothing about sessions is stored: the key that signs them is bound to the name and the password, so that all
end when either changes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Any

from itsdangerous import BadSignature, Signer, TimestampSigner
from starlette.requests import Request

from agent.hub.attempts import Attempts

COOKIE = "phaze_session_"
"""How the cookie's name begins. What follows is the hub's own: ports do not count, so that a browser would keep one
cookie for all hubs of a machine, and a login on one would end that on another."""

SESSION_SECONDS = 7 * 86_400
"""After so long the password is asked for again."""

NOBODY = "open"
"""Who asks where there is no login."""

BASIC = "basic"
"""Who asks with name and password in each request: a tool."""


@dataclass(frozen=True)
class TooManyFailures(Exception):
    """Wrong passwords came from there too often; `wait` is in seconds."""

    wait: float


class Login:
    """The hub's one account. Without a password there is no login, and everybody is let in.

    Args:
        user: the name.
        password: None for no login.
        key: what signs sessions; one that stays, so that they outlive the hub.
    """

    def __init__(self, user: str, password: str | None, key: str) -> None:
        self.required = password is not None
        self._user = _digest(user)
        self._password = _digest(password or secrets.token_urlsafe())
        bound = hmac.digest(key.encode(), self._user + self._password, "sha256")
        how: Any = {"key_derivation": "hmac", "digest_method": hashlib.sha256}
        self.cookie = COOKIE + hmac.digest(key.encode(), b"phaze.cookie", "sha256").hex()[:8]
        self._sessions = TimestampSigner(bound, salt="phaze.session", **how)
        self._tokens = Signer(bound, salt="phaze.csrf", **how)
        self._attempts = Attempts()

    def check(self, user: str, password: str, address: str) -> bool:
        """Whether these are the name and the password. Raises TooManyFailures, without having looked at them.

        It takes as long for a wrong name as for a wrong password.
        """
        if (wait := self._attempts.wait(address)) > 0:
            raise TooManyFailures(wait)
        right = hmac.compare_digest(_digest(user), self._user) & hmac.compare_digest(_digest(password), self._password)
        (self._attempts.succeeded if right else self._attempts.failed)(address)
        return bool(right)

    def new_session(self) -> str:
        """A cookie's value for somebody who has shown the password."""
        return self._sessions.sign(secrets.token_urlsafe(16)).decode()

    def who(self, request: Request) -> str | None:
        """Whose request this is: a session's name, BASIC, NOBODY where there is no login; None: a stranger's.

        Raises TooManyFailures.
        """
        if not self.required:
            return NOBODY
        try:
            return self._sessions.unsign(request.cookies.get(self.cookie, ""), max_age=SESSION_SECONDS).decode()
        except BadSignature:
            pass
        given = _basic(request.headers.get("authorization", ""))
        return BASIC if given is not None and self.check(*given, address_of(request)) else None

    def token(self, who: str) -> str:
        """What a change asked for by `who` must carry."""
        return self._tokens.get_signature(who).decode()

    def accepts(self, who: str, token: str) -> bool:
        """Whether this is that token."""
        return hmac.compare_digest(self.token(who).encode(), token.encode("utf-8", "surrogateescape"))


def address_of(request: Request) -> str:
    """The client's address as the kernel tells it. What a proxy says of its clients is not believed."""
    return "" if request.client is None else request.client.host


def _basic(header: str) -> tuple[str, str] | None:
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).decode("utf-8").partition(":")
    except ValueError:
        return None
    return (user, password) if colon else None


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
