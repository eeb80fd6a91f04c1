"""Starting: where it listens, with which keys, in what form (API-1, 2, 21), and stopping."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from cellwall.apps.exposure import check_exposure
from cellwall.model.errors import UsageError
from cellwall.server.auth.keys import KeyRecord, KeyRing, digest_of, new_key
from cellwall.server.core.settings import ServerSettings
from kit.servers import ADMIN, ALICE, configuration, start, state_of

OWN = "own-key-0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("settings", "has_keys", "fault"),
    [
        ({}, False, None),
        ({"host": "localhost"}, False, None),
        ({"host": "::1"}, False, None),
        ({"host": "0.0.0.0", "unix": "/x"}, False, None),
        ({"host": "0.0.0.0"}, False, "no key"),
        ({"host": "10.1.2.3"}, False, "no key"),
        ({"host": "0.0.0.0", "allow_plain": True}, False, "no key"),
        ({"host": "0.0.0.0"}, True, "plain text"),
        ({"host": "::"}, True, "plain text"),
        ({"host": "0.0.0.0", "allow_plain": True}, True, None),
        ({"host": "0.0.0.0", "tls_cert": "c", "tls_key": "k"}, True, None),
        ({"host": "0.0.0.0", "tls_cert": "c", "tls_key": "k"}, False, "no key"),
    ],
)
def test_start_matrix(settings: dict[str, object], has_keys: bool, fault: str | None) -> None:
    made = ServerSettings(**settings)  # type: ignore[arg-type]
    if fault is None:
        check_exposure(made, has_own_keys=has_keys)
    else:
        with pytest.raises(UsageError, match=fault):
            check_exposure(made, has_own_keys=has_keys)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--tls-cert", "nowhere.pem"), "certificate nowhere.pem and key None: No such file"),
        (("--tls-cert", "empty"), "TLS with certificate empty"),
        (("--log-level", "nope"), "log: there is no level 'nope'; say debug"),
        (("--port", "99999"), "settings: port = 99999 is no TCP port; give one"),
        (("--unix", "x" * 200), "AF_UNIX path too long; name a short path"),
        (("--unix", "empty/x"), "serve: bind empty/x: Not a directory"),
        (("--state-dir", "empty/x"), "empty/x/server/lock: Not a directory; give --state-dir"),
    ],
)
def test_start_that_cannot_be_says_why(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    (tmp_path / "empty").touch()
    done = subprocess.run(
        [sys.executable, "-m", "cellwall.apps.cli.main", "serve", "--port", "0", *words],
        env={**os.environ, "CELLWALL_API_KEY": OWN, "CELLWALL_STATE_DIR": str(tmp_path / "state")},
        capture_output=True, text=True, check=False, timeout=30, cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (125, "")
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_open_bind_without_keys_does_not_start(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cellwall.apps.cli.main", "serve", "--host", "0.0.0.0"],
        env={k: v for k, v in os.environ.items() if k != "CELLWALL_API_KEY"},
        capture_output=True, text=True, check=False, timeout=30, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode != 0
    assert "listening" not in done.stdout
    assert "CELLWALL_API_KEY" in done.stderr


def test_first_start_makes_a_key_that_is_printed_once(tmp_path: Path) -> None:
    first = start(tmp_path, "--port", "0", is_forked=False)
    try:
        key = first.lines[0].removeprefix("key: ")
        assert first.client(key).get("/stats").json()["server"] is not None
        assert first.client("x" * 46).get("/stats").status_code == 401
        assert key not in first.log.read_text(encoding="utf-8")
        for name in ("cmdline", "environ"):
            assert key.encode() not in Path(f"/proc/{first.process.pid}/{name}").read_bytes()
    finally:
        assert first.stop() == 0
    for path in (tmp_path / "state" / "server").rglob("*"):
        if path.is_file():
            assert key.encode() not in path.read_bytes()
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    second = start(tmp_path, "--port", "0")
    try:
        assert key not in "\n".join(second.lines)
        assert second.client(key).get("/stats").status_code == 200
    finally:
        second.stop()
    third = start(tmp_path, "--port", "0", "--new-key")
    try:
        afresh = third.lines[0].removeprefix("key: ")
        assert third.client(afresh).get("/stats").status_code == 200
        assert third.client(key).get("/stats").status_code == 401
    finally:
        third.stop()


def test_key_file_of_an_older_server_moves_into_the_store(tmp_path: Path) -> None:
    path = state_of(tmp_path) / "server" / "key.json"
    path.parent.mkdir(mode=0o700)
    path.write_text(json.dumps({"sha256": digest_of(OWN), "made_at": 1_700_000_000}))
    for _ in range(2):
        server = start(tmp_path, "--port", "0")
        try:
            assert "key: cw_" not in "\n".join(server.lines)
            assert server.client(OWN).get("/stats").json()["server"] is not None
            (kept,) = server.client(OWN).get("/keys").json()["keys"]
            assert (kept["name"], kept["created_at"]) == (
                "first start", "2023-11-14T22:13:20.000Z",
            )  # fmt: skip
        finally:
            server.stop()
        assert not path.exists()


def test_damaged_key_file_keeps_the_server_from_starting(tmp_path: Path) -> None:
    path = state_of(tmp_path) / "server" / "key.json"
    path.parent.mkdir(mode=0o700)
    path.write_text("{}")
    with pytest.raises(AssertionError, match=r"key\.json cannot be read.*--new-key"):
        start(tmp_path, "--port", "0")
    assert path.exists()


def test_server_without_a_store_has_a_key_for_its_life(tmp_path: Path) -> None:
    keys = []
    for _ in range(2):
        server = start(tmp_path, "--port", "0", "--store", "none")
        try:
            keys.append(server.lines[0].removeprefix("key: "))
            client = server.client(keys[-1])
            assert client.get("/stats").status_code == 200
            assert client.post("/keys", json={"tenant": "a"}).status_code == 409
        finally:
            server.stop()
    assert keys[0] != keys[1]


def test_own_key_and_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    server = start(tmp_path, "--unix", path, environ={"CELLWALL_API_KEY": OWN})
    try:
        assert server.lines == [f"listening on unix:{path}"]
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert (
            server.client(OWN).post("/execute", json={"code": "print(1)"}).json()["stdout"] == "1\n"
        )
        assert server.client(None).get("/stats").status_code == 401
    finally:
        server.stop()
    assert not os.path.exists(path)


@pytest.mark.needs("openssl")
def test_tls_is_spoken(tmp_path: Path) -> None:
    cert, key = tmp_path / "c.pem", tmp_path / "k.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        capture_output=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    server = start(
        tmp_path, "--port", "0", "--tls-cert", str(cert), "--tls-key", str(key),
        environ={"CELLWALL_API_KEY": OWN},
    )  # fmt: skip
    try:
        assert server.address.startswith("https://")
        import ssl

        context = ssl.create_default_context(cafile=str(cert))
        answer = httpx.get(f"{server.address}/stats", headers={"X-API-Key": OWN}, verify=context)
        assert answer.status_code == 200
    finally:
        server.stop()


@pytest.mark.parametrize("key", ["short", "x" * 31, "with space " * 4, "é" * 40])
def test_weak_own_keys_are_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(AssertionError, match="at least 32 printable"):
        start(tmp_path, "--port", "0", environ={"CELLWALL_API_KEY": key})


def test_our_keys_have_enough_bits_and_are_kept_as_digests() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert {len(key) for key in keys} == {46}
    ring = KeyRing([KeyRecord(digest_of(key)) for key in keys])
    assert not any(key in repr(vars(ring)) for key in keys)
    assert all(ring.find(key) is not None for key in keys)
    assert ring.find("cw_" + "A" * 43) is None


def test_keys_expire_and_are_revoked_at_once() -> None:
    ring = KeyRing([KeyRecord(digest_of(ALICE), expires_at=1.0)])
    ring.replace_stored([KeyRecord(digest_of(ADMIN))])
    assert ring.find(ALICE) is None
    assert ring.find(ADMIN) is not None
    assert ring.accepted() == {digest_of(ADMIN)[:12]}  # of these, what is under way goes on
    ring.replace_stored([])
    assert ring.find(ADMIN) is None
    assert ring.accepted() == set()


def test_scopes_contain_the_lower_ones() -> None:
    ring = KeyRing([KeyRecord(digest_of(ALICE), scope="manage")])
    found = ring.find(ALICE)
    assert found is not None
    assert (found.may("run"), found.may("manage"), found.may("admin")) == (True, True, False)


def test_configuration_is_closed(tmp_path: Path) -> None:
    for text in ("[server]\nporte = 1\n", "[serve]\n", "[server]\nport = 'x'\n", "[[keys]]\n"):
        with pytest.raises(AssertionError, match="settings:"):
            start(tmp_path, config=text)


def test_stopping_ends_streams_and_leaves_nothing(tmp_path: Path) -> None:
    server = start(tmp_path, "--port", "0", config=configuration(stop_s=2))
    client = server.client()
    body = {"code": "print(1, flush=True)\nwhile True: pass", "on_disconnect": "detach"}
    with client.stream(
        "POST", "/execute", json=body, headers={"Accept": "application/x-ndjson"}
    ) as answer:
        lines = answer.iter_lines()
        next(lines)
        server.process.terminate()
        rest = [json.loads(line) for line in lines]
    assert rest[-1]["type"] == "end"
    assert server.stop() == 0
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", server.port), timeout=2)
