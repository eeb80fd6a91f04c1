"""A certificate is for what it was given for, and TLS itself holds that."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from cellwall.cluster.certificates import (
    ANY_ADDRESS,
    Files,
    gateway_context,
    issue_gateway,
    issue_node,
    make_authority,
    node_context,
)
from cellwall.model.errors import UsageError

HOST = "127.0.0.1"


class _Cluster:
    """One authority, with a node's and a gateway's certificate."""

    def __init__(self, folder: Path, *, days: int = 365) -> None:
        self.authority = make_authority(folder).certificate
        self.node = issue_node(folder, "node", (HOST,), days)
        self.gateway = issue_gateway(folder, "gate", days)


async def _spoken(server: ssl.SSLContext, client: ssl.SSLContext, name: str | None = None) -> bytes:
    """Return what a client hears of a server behind both contexts."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"heard\n")
        writer.close()

    listening = await asyncio.start_server(serve, HOST, 0, ssl=server)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(HOST, port, ssl=client, server_hostname=name)
        try:
            writer.write(b"hello\n")
            return await reader.read()
        finally:
            writer.transport.abort()


def _heard(server: ssl.SSLContext, client: ssl.SSLContext, name: str | None = None) -> bytes:
    return asyncio.run(_spoken(server, client, name))


def _plain(authority: Path, files: Files | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority))
    if files is not None:
        context.load_cert_chain(files.certificate, files.key)
    return context


def test_gateway_reaches_a_node_of_its_cluster(tmp_path: Path) -> None:
    one = _Cluster(tmp_path / "one")
    server = node_context(one.authority, one.node)
    assert _heard(server, gateway_context(one.authority, one.gateway)) == b"heard\n"


def test_node_refuses_what_is_no_gateway(tmp_path: Path) -> None:
    one, other = _Cluster(tmp_path / "one"), _Cluster(tmp_path / "other")
    over = issue_gateway(tmp_path / "one", "over", days=0)
    server = node_context(one.authority, one.node)
    assert _heard(server, _plain(one.authority, one.gateway)) == b"heard\n"  # the control
    for files in (None, one.node, other.gateway, over):
        assert not _is_served(server, _plain(one.authority, files))


def _is_served(server: ssl.SSLContext, client: ssl.SSLContext) -> bool:
    """Report whether a client hears anything; of TLS 1.3 it may hear an alert, or only the end."""
    try:
        return bool(_heard(server, client))
    except OSError:  # ssl.SSLError is one
        return False


def test_gateway_refuses_what_is_no_node_of_its_cluster(tmp_path: Path) -> None:
    one, other = _Cluster(tmp_path / "one"), _Cluster(tmp_path / "other")
    client = gateway_context(one.authority, one.gateway)
    elsewhere = issue_node(tmp_path / "one", "elsewhere", ("10.9.9.9",))
    for authority, files in (
        (one.authority, one.gateway),
        (other.authority, other.node),
        (one.authority, elsewhere),
    ):
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(files.certificate, files.key)
        server.load_verify_locations(authority)
        with pytest.raises(ssl.SSLCertVerificationError):
            _heard(server, client)


def test_node_that_is_found_is_known_by_a_name_and_one_of_a_list_by_its_address(
    tmp_path: Path,
) -> None:
    one = _Cluster(tmp_path / "one")
    client = gateway_context(one.authority, one.gateway)
    found = node_context(one.authority, issue_node(tmp_path / "one", "found", (ANY_ADDRESS,)))
    listed = node_context(one.authority, one.node)
    assert _heard(found, client, ANY_ADDRESS) == _heard(listed, client) == b"heard\n"
    with pytest.raises(ssl.SSLCertVerificationError):
        _heard(listed, client, ANY_ADDRESS)
    with pytest.raises(ssl.SSLCertVerificationError):
        _heard(found, client)


def test_key_is_its_owners_alone_and_no_authority_replaces_another(tmp_path: Path) -> None:
    files = make_authority(tmp_path / "one")
    assert files.key.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UsageError, match="has an authority"):
        make_authority(tmp_path / "one")
    for name in ("", "../x", "authority", "a b"):
        with pytest.raises(UsageError, match="not a name"):
            issue_gateway(tmp_path / "one", name)
    with pytest.raises(UsageError, match="needs the addresses"):
        issue_node(tmp_path / "one", "node", ())
    with pytest.raises(UsageError, match="cluster init"):
        issue_gateway(tmp_path / "two", "gate")
