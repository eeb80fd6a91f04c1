"""A real server with the door for E2B's clients, on a port of its own, and their SDK's options."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from cellwall.server.auth.keys import in_e2b_form
from kit.arena import DAY_S
from kit.servers import ALICE, Server, running

SETTINGS = f"""
[engine]
network = "open"
pool_idle_s = {DAY_S}
[doors.e2b]
port = 0
"""
MADE = {"templateID": "base"}


@dataclass
class E2BServer:
    """A server, and the address of its door."""

    server: Server
    address: str
    _clients: list[httpx.Client] = field(default_factory=list)

    def client(self, key: str | None = ALICE, **headers: str) -> httpx.Client:
        """Return a client of the control plane; it is closed with the server.

        Each has an address of loopback's of its own: refused keys are counted by address.
        """
        if key is not None:
            headers["X-API-KEY"] = in_e2b_form(key)
        number = len(self._clients) % 60_000
        transport = httpx.HTTPTransport(local_address=f"127.1.{number // 250}.{number % 250 + 1}")
        made = httpx.Client(base_url=self.address, headers=headers, timeout=40, transport=transport)
        self._clients.append(made)
        return made

    def close(self) -> None:
        """Close the clients."""
        for client in self._clients:
            client.close()

    def sdk(self, key: str = ALICE) -> dict[str, Any]:
        """Return what the SDK's methods take in the place of its three variables."""
        return {
            "api_url": self.address,
            "sandbox_url": self.address,
            "api_key": in_e2b_form(key),
        }

    def variables(self, key: str = ALICE) -> dict[str, str]:
        """Return the variables by which an unmodified client is pointed here."""
        return {
            "E2B_API_URL": self.address,
            "E2B_SANDBOX_URL": self.address,
            "E2B_API_KEY": in_e2b_form(key),
            "NO_PROXY": "127.0.0.1,localhost",
        }


@contextlib.contextmanager
def e2b_server(
    more: str = "", options: str = "", /, *, engine: str = "", **server: object
) -> Iterator[E2BServer]:
    """Run a server with the door; `options` are further lines of its section, `more` is TOML.

    `engine`: further lines of `[engine]`.
    """
    settings = SETTINGS.replace("[engine]\n", f"[engine]\n{engine}")
    with running(settings + options + more, **server) as made:
        assert made.process.stdout is not None
        line = made.process.stdout.readline().strip()
        assert line.startswith("door e2b on http"), line
        found = E2BServer(made, line.removeprefix("door e2b on "))
        try:
            yield found
        finally:
            found.close()


def created(client: httpx.Client, **body: object) -> dict[str, str]:
    """Create a sandbox and return what the door says of it."""
    answer = client.post("/v2/sandboxes", json={**MADE, **body})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def refusal(answer: httpx.Response, status: int) -> str:
    """Return the message of a refusal, checked for the shape that both SDKs need."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert body["code"] == status, body
    assert isinstance(body["message"], str)
    assert set(body) == {"code", "message"}
    return str(body["message"])
