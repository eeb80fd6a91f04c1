"""Uploads of the E2B door's builds, by hostile clients: nothing but the one archive is opened."""

from __future__ import annotations

import io
import os
import re
import socket
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from kit.server.e2b_doors import refusal
from kit.server.e2b_templates import Workshop, archive, workshop
from kit.servers import ADMIN, MANAGER
from kit.waiting import wait_until

pytestmark = pytest.mark.root
STEM = "uploads"


@pytest.fixture(scope="module")
def shop() -> Iterator[Workshop]:
    """A server whose tenants may upload one MiB, and whose steps may write 64."""
    with workshop("uploads_mb = 1\n", "[most]\ndisk_mb = 64\n") as made:
        for key in (MANAGER, ADMIN):
            made.e2b.client(key).post("/v3/templates", json={"name": STEM})
        yield made


def digest() -> str:
    return (uuid.uuid4().hex * 2)[:64]


def address(shop: Workshop, of: str, key: str = MANAGER) -> str:
    answer = shop.e2b.client(key).get(f"/templates/{STEM}/files/{of}")
    assert answer.status_code == 201, answer.text
    return str(answer.json()["url"])


def is_here(shop: Workshop, of: str, key: str = MANAGER) -> bool:
    answer = shop.e2b.client(key).get(f"/templates/{STEM}/files/{of}")
    return bool(answer.json()["present"])


def put(shop: Workshop, url: str, data: bytes) -> httpx.Response:
    """Send an archive as the SDK does: with no key. Wrong addresses count by address."""
    return shop.e2b.client(None).put(url, content=data)


def reason_of(shop: Workshop, of: str, source: str = "a", check: str = "true") -> str | None:
    """Build a template with the archive; return why it failed, or None."""
    client = shop.e2b.client(MANAGER)
    made = client.post("/v3/templates", json={"name": STEM}).json()
    place = f"/templates/{STEM}/builds/{made['buildID']}"
    steps = [
        {"type": "COPY", "args": [source, "/srv/x/", "", ""], "filesHash": of, "force": False},
        {"type": "RUN", "args": [check], "force": False},
    ]
    answer = client.post(f"/v2{place}", json={"fromImage": shop.image, "steps": steps})
    assert answer.status_code == 202, answer.text
    shown: list[dict[str, object]] = []

    def has_ended() -> bool:
        shown.append(client.get(f"{place}/status").json())
        return shown[-1]["status"] in {"ready", "error"}

    wait_until(has_ended, "the build")
    why = shown[-1].get("reason")
    return str(why["message"]) if isinstance(why, dict) else None


def test_the_control_an_archive_is_taken_and_built_with(shop: Workshop) -> None:
    of = digest()
    assert put(shop, address(shop, of), archive({"a": b"1"})).status_code == 200
    assert is_here(shop, of)
    assert reason_of(shop, of, check='test "$(cat /srv/x/a)" = 1') is None


def test_below_a_prefix_the_address_has_it(shop: Workshop) -> None:
    of, base = digest(), f"{shop.e2b.server.address}/e2b"
    with shop.e2b.server.client(MANAGER) as client:
        url = client.get(f"{base}/templates/{STEM}/files/{of}").json()["url"]
    assert url.startswith(f"{base}/uploads/")
    assert put(shop, url, archive({"a": b"1"})).status_code == 200
    assert is_here(shop, of)


def test_an_address_that_was_changed_opens_nothing(shop: Workshop) -> None:
    of, other = digest(), digest()
    url = address(shop, of)
    expiry = re.search(r"/uploads/([0-9]+)_", url)
    assert expiry is not None
    for wrong in (
        url.replace(of, other),
        url.replace(expiry[1], str(int(expiry[1]) + 1)),
        url[:-1] + ("0" if url[-1] != "0" else "1"),
        url.rpartition("/")[0] + "/",
        url.rpartition("/")[0] + "/../../etc/passwd",
        url.rpartition("/")[0] + "/%2e%2e%2f" + of,
    ):
        answer = put(shop, wrong, archive({"a": b"1"}))
        assert answer.status_code in {401, 404}, (wrong, answer.text)
    assert not is_here(shop, of)
    assert not is_here(shop, other)


def test_an_address_opens_nothing_else(shop: Workshop) -> None:
    url = address(shop, digest())
    token = url.rpartition("/")[2]
    client = shop.e2b.client(None, **{"X-API-KEY": token, "X-Access-Token": token})
    refusal(client.get("/v2/sandboxes"), 401)
    for method in ("GET", "POST", "DELETE"):
        assert shop.e2b.client(None).request(method, url).status_code in {401, 404, 405}


def test_an_address_of_one_tenant_fills_no_cache_of_another(shop: Workshop) -> None:
    of = digest()
    assert put(shop, address(shop, of, ADMIN), archive({"a": b"1"})).status_code == 200
    assert is_here(shop, of, ADMIN)
    assert not is_here(shop, of)


@pytest.mark.parametrize("of", ["A" * 64, "a" * 63, "..", "%2e%2e%2fx", "a" * 62 + "/."])
def test_a_hash_that_is_none_is_refused(shop: Workshop, of: str) -> None:
    answer = shop.e2b.client(MANAGER).get(f"/templates/{STEM}/files/{of}")
    assert answer.status_code in {400, 404, 501}, answer.text


def test_more_than_the_bound_is_refused_whatever_was_announced(shop: Workshop) -> None:
    of = digest()
    url = address(shop, of)
    whole = os.urandom((1 << 20) + 1)
    refusal(put(shop, url, whole), 413)
    pieces = (whole[at : at + 65_536] for at in range(0, len(whole), 65_536))
    answer = shop.e2b.client(None).put(url, content=pieces)
    refusal(answer, 413)
    assert not is_here(shop, of)


def test_the_oldest_archives_make_room(shop: Workshop) -> None:
    first, second = digest(), digest()
    for of in (first, second):
        assert put(shop, address(shop, of), os.urandom(700_000)).status_code == 200
    assert is_here(shop, second)
    assert not is_here(shop, first)


def test_a_body_that_ends_before_its_length_leaves_nothing(shop: Workshop) -> None:
    of = digest()
    parts = urlsplit(address(shop, of))
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as sent:
        head = f"PUT {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: 9000\r\n\r\n"
        sent.sendall(head.encode() + bytes(100))
    assert not is_here(shop, of)
    folder = shop.e2b.server.log.parent / "state" / "e2b-uploads"
    wait_until(lambda: list(folder.rglob(".coming-*")) == [], "the rest is gone")


@pytest.mark.parametrize("data", [b"", b"no archive", bytes(2048), b"\x1f\x8b" + bytes(100)])
def test_what_is_no_archive_fails_the_step(shop: Workshop, data: bytes) -> None:
    of = digest()
    assert put(shop, address(shop, of), data).status_code == 200
    assert reason_of(shop, of) is not None


def test_names_that_lead_out_stay_inside_the_sandbox(shop: Workshop, tmp_path: Path) -> None:
    made = io.BytesIO()
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name in ("a", "../../../../../../tmp/e2b-out", f"{tmp_path}/out", ".wh.a"):
            info = tarfile.TarInfo(name)
            info.size = 1
            tar.addfile(info, io.BytesIO(b"1"))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, str(secret)
        tar.addfile(link)
    of = digest()
    assert put(shop, address(shop, of), made.getvalue()).status_code == 200
    reason_of(shop, of)
    reason_of(shop, of, source=".", check=f"! cat {secret}")
    assert not Path("/tmp/e2b-out").exists()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["secret"]


def test_a_source_that_leads_out_is_refused(shop: Workshop) -> None:
    made = shop.e2b.client(MANAGER).post("/v3/templates", json={"name": STEM}).json()
    step = {"type": "COPY", "args": ["a/../../b", "/b"], "filesHash": digest()}
    answer = shop.e2b.client(MANAGER).post(
        f"/v2/templates/{STEM}/builds/{made['buildID']}",
        json={"fromImage": shop.image, "steps": [step]},
    )
    assert "leads out" in refusal(answer, 400)


def test_an_archive_that_unpacks_to_very_much_fails_its_step_alone(shop: Workshop) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz", compresslevel=9) as tar:
        info = tarfile.TarInfo("a")
        info.size = 300 << 20
        with open("/dev/zero", "rb") as zeros:
            tar.addfile(info, zeros)
    assert len(made.getvalue()) < 1 << 20
    of = digest()
    assert put(shop, address(shop, of), made.getvalue()).status_code == 200
    assert "exit status" in str(reason_of(shop, of))
    assert shop.e2b.client(MANAGER).get("/v2/sandboxes").status_code == 200
