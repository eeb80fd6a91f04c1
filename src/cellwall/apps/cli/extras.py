"""Whether the packages of an extra are there, said before anything needs them."""

from __future__ import annotations

from cellwall.model.errors import HostUnsupported


def check_server() -> None:
    """Raise `HostUnsupported` unless what the extra `server` brings can be imported."""
    try:
        import uvloop  # noqa: F401 - is it there?

        import cellwall.server.app  # noqa: F401 - and all that it needs?
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("cellwall"):
            raise
        raise HostUnsupported(
            "server",
            f"server: the package {error.name!r} is not installed",
            remedy="run: pip install 'cellwall[server]'",
        ) from None
