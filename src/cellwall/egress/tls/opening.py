"""What one sandbox needs for its TLS to be opened: its authority, its secrets, and verification.

Made when the sandbox is added to the egress proxy, which alone has it.
"""

from __future__ import annotations

import ssl
from collections import OrderedDict
from collections.abc import Sequence

from cellwall.egress.tls.authority import Authority
from cellwall.egress.tls.stream import End
from cellwall.egress.tls.substitution import Substitution
from cellwall.model.secret import Secret

_MOST_SESSIONS = 256


class Opening:
    """The opening of one sandbox's TLS."""

    def __init__(self, sandbox: str, secrets: Sequence[Secret], servers: ssl.SSLContext) -> None:
        """`servers` verifies what is connected to."""
        self._authority = Authority(sandbox)
        self._secrets = secrets
        self._servers = servers
        self._sessions: OrderedDict[tuple[str, int], ssl.SSLSession] = OrderedDict()

    @property
    def certificate(self) -> str:
        """Certificate of the sandbox's authority, as PEM."""
        return self._authority.certificate

    def has_secret_for(self, name: str, port: int) -> bool:
        """Whether a server gets a secret in TLS."""
        return any(each.is_for(name, port, is_plain=False) for each in self._secrets)

    def substitution(self, name: str, port: int, *, is_plain: bool) -> Substitution | None:
        """Return what is replaced in requests to a server; None: nothing, there are no secrets."""
        if not self._secrets:
            return None
        given = [each for each in self._secrets if each.is_for(name, port, is_plain=is_plain)]
        return Substitution(given, [each for each in self._secrets if each not in given])

    def program_end(self, host: str) -> End:
        """Return the end of TLS that a program sees."""
        return End(self._authority.context_for(host))

    def server_end(self, host: str, port: int) -> End:
        """Return the end of TLS that a server sees."""
        return End(self._servers, host, self._sessions.get((host, port)))

    def keep_session(self, host: str, port: int, session: ssl.SSLSession | None) -> None:
        """Keep a session with a server that was verified, for this sandbox's next connection."""
        if session is None:
            return
        self._sessions[host, port] = session
        self._sessions.move_to_end((host, port))
        if len(self._sessions) > _MOST_SESSIONS:
            self._sessions.popitem(last=False)
