"""Whether the packages of an extra are there, said before anything needs them."""

from __future__ import annotations

from importlib.util import find_spec

from cellwall.model.errors import HostUnsupported

SERVER = (
    "alembic",
    "httptools",
    "prometheus_client",
    "pydantic",
    "python_multipart",
    "sqlalchemy",
    "starlette",
    "structlog",
    "uvicorn",
    "uvloop",
    "websockets",
)
"""What the extra `server` brings, by the names that are imported."""


def check_server() -> None:
    """Raise `HostUnsupported` unless what the extra `server` brings is installed.

    Looked for, not imported: a command that only reads the store needs half of it.
    """
    missing = [name for name in SERVER if find_spec(name) is None]
    if missing:
        raise HostUnsupported(
            "server",
            f"server: not installed: {', '.join(missing)}",
            remedy="run: pip install 'cellwall[server]'",
        )
