"""Webhooks: signed, delivered once more when it helps, and never to where they must not go.

The denied addresses have a witness, a server on loopback that counts connections, and a control:
the same URL with the address listed by the operator arrives.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from cellwall.egress.addresses import AddressPolicy
from cellwall.egress.posting import Resolve
from cellwall.egress.target import target_of
from cellwall.egress.webhook import Webhooks, WebhookSettings, WebhookStatistics
from cellwall.model.errors import UsageError
from conftest import Require
from kit.receivers import Receiver, answer, listening

SECRET = b"s" * 32
FAST = WebhookSettings(delays_s=(0.001, 0.001))
LOOPBACK = ("127.0.0.0/8", "::1")


def webhooks(
    listed: Sequence[str] = LOOPBACK,
    *,
    settings: WebhookSettings = FAST,
    resolve: Resolve | None = None,
    tls: ssl.SSLContext | None = None,
) -> Webhooks:
    return Webhooks(SECRET, listed, settings, resolve, tls)


def naming(*answers: Sequence[str]) -> Resolve:
    """Return a resolver that gives these addresses, one answer after the other, then the last."""
    left = list(answers)

    async def resolve(host: str, port: int) -> Sequence[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return resolve


# ── delivery ──────────────────────────────────────────────────────────────────────────────────


def test_delivery_is_signed_with_the_tenants_secret() -> None:
    async def run() -> tuple[Receiver, str]:
        hooks = webhooks()
        async with listening() as receiver:
            assert hooks.send(receiver.url(path="/a?b=c"), {"id": "ex1", "ü": 1}, tenant="moss")
            await hooks.aclose()
            assert hooks.statistics().delivered == 1
            return receiver, hooks.secret_of("moss")

    receiver, secret = asyncio.run(run())
    got = receiver.received[0]
    assert (got.path, json.loads(got.body)) == ("/a?b=c", {"id": "ex1", "ü": 1})
    moment, _, signature = got.headers["cellwall-signature"].partition(",v1=")
    assert abs(int(moment.removeprefix("t=")) - time.time()) < 60
    signed = moment.removeprefix("t=").encode() + b"." + got.body
    assert signature == hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    assert got.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert got.headers["content-type"] == "application/json"


def test_method_is_post_unless_another_is_named() -> None:
    async def run() -> list[str]:
        hooks = webhooks()
        async with listening() as receiver:
            assert hooks.send(receiver.url(), {})
            assert hooks.send(receiver.url(), {}, method="PUT")
            await hooks.aclose()
            return [each.method for each in receiver.received]

    assert sorted(asyncio.run(run())) == ["POST", "PUT"]


def test_tenants_cannot_sign_for_each_other() -> None:
    hooks = webhooks()
    assert hooks.secret_of("moss") != hooks.secret_of("fern")
    assert hooks.signature("moss", b"x", 1.0) != hooks.signature("fern", b"x", 1.0)
    assert SECRET.decode() not in hooks.secret_of("moss")


@pytest.mark.parametrize("status", [500, 503, 408, 425, 429])
def test_what_may_pass_is_tried_again(status: int) -> None:
    async def run() -> Receiver:
        hooks = webhooks()
        async with listening(lambda n: answer(status if n < 3 else 204)) as receiver:
            hooks.send(receiver.url(), {})
            await hooks.aclose()
            assert hooks.statistics().delivered == 1
            return receiver

    receiver = asyncio.run(run())
    assert len(receiver.received) == 3
    assert len({got.headers["cellwall-delivery"] for got in receiver.received}) == 1


@pytest.mark.parametrize("status", [400, 401, 404, 410])
def test_refusals_are_final(status: int) -> None:
    async def run() -> None:
        hooks = webhooks()
        async with listening(lambda _: answer(status)) as receiver:
            hooks.send(receiver.url(), {})
            await hooks.aclose()
            assert (hooks.statistics().failed, len(receiver.received)) == (1, 1)

    asyncio.run(run())


@pytest.mark.parametrize(
    "said",
    [b"", b"SSH-2.0-moss\r\n", b"HTTP/1.1 200\x00 x\r\n\r\n", answer(200, "x: " + "y" * 100_000)],
    ids=["hang up", "other protocol", "bad line", "long head"],
)
def test_attempts_are_bounded_whatever_is_answered(said: bytes) -> None:
    async def run() -> None:
        hooks = webhooks()
        async with listening(lambda _: said) as receiver:
            hooks.send(receiver.url(), {})
            await hooks.aclose()
            assert (hooks.statistics().failed, receiver.connections) == (1, 3)

    asyncio.run(run())


def test_nobody_waits_for_a_receiver_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellwall.egress.posting._ANSWER_S", 0.05)

    async def run() -> None:
        hooks = webhooks()
        async with listening(lambda _: None) as receiver:
            begun = time.monotonic()
            assert all(hooks.send(receiver.url(), {"n": n}) for n in range(20))
            assert time.monotonic() - begun < 1
            assert receiver.connections == 0
            await hooks.aclose(50)
            assert hooks.statistics().failed == 20
            assert receiver.most_open <= FAST.at_once_per_tenant

    asyncio.run(run())


def test_slow_receiver_of_one_tenant_holds_up_no_other() -> None:
    async def run() -> None:
        hooks, arrived = webhooks(), asyncio.Event()

        def says(_: int) -> bytes:
            arrived.set()
            return answer(200)

        async with listening(lambda _: None) as dead, listening(says) as alive:
            for number in range(FAST.most_waiting_per_tenant + 50):
                hooks.send(dead.url(), {"n": number}, tenant="moss")
            assert hooks.statistics().dropped == 50
            assert hooks.send(alive.url(), {}, tenant="fern")
            await asyncio.wait_for(arrived.wait(), 40)
            await hooks.aclose(0)
            assert dead.most_open <= FAST.at_once_per_tenant

    asyncio.run(run())


def test_place_of_a_delivery_is_free_once_it_is_over() -> None:
    """Also after a failed one: a dead receiver stops its tenant's webhooks for a while only."""

    async def run() -> None:
        hooks = webhooks(settings=WebhookSettings(delays_s=(), most_waiting_per_tenant=2))
        async with listening(lambda n: answer(500 if n < 3 else 200)) as receiver:
            for _ in range(3):
                sent = [hooks.send(receiver.url(), {}, tenant="moss") for _ in range(3)]
                assert sent == [True, True, False]
                await hooks._tasks.wait_empty()
        await hooks.aclose()
        assert hooks.statistics() == WebhookStatistics(0, delivered=4, failed=2, dropped=3)

    asyncio.run(run())


def test_everybody_together_is_bounded() -> None:
    async def run() -> None:
        hooks = webhooks(settings=WebhookSettings(most_waiting=10))
        async with listening(lambda _: None) as receiver:
            queued = [hooks.send(receiver.url(), {}, tenant=f"t{n}") for n in range(15)]
            assert queued == [True] * 10 + [False] * 5
            await hooks.aclose(0)
            assert hooks.statistics().dropped == 15
            assert hooks.statistics().waiting == 0

    asyncio.run(run())


def test_what_cannot_be_sent_is_dropped_not_raised() -> None:
    hooks = webhooks()
    assert not hooks.send("ftp://x", {})
    assert not hooks.send("https://x", {"nan": float("nan")})
    assert not hooks.send("https://x", {"object": object()})
    assert not hooks.send("https://x", {"long": "x" * 1024 * 1024})
    assert hooks.statistics().dropped == 4


# ── where to ──────────────────────────────────────────────────────────────────────────────────

DENIED = [
    "127.0.0.1",
    "0.0.0.0",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",  # metadata, Alibaba
    "168.63.129.16",  # Azure's control channel
    "169.254.169.254",  # metadata: AWS, GCP, Azure
    "169.254.170.2",  # credentials of containers
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",  # metadata, Oracle
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "239.255.255.255",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "::ffff:0:127.0.0.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "2001::1",
    "2002:7f00:1::1",
    "fc00::1",
    "fd00:ec2::254",  # metadata, AWS over IPv6
    "fe80::1",
    "fe80::1%lo",
    "fec0::1",
    "ff02::1",
]
PUBLIC = ["1.1.1.1", "8.8.8.8", "99.255.255.255", "100.128.0.1", "172.32.0.1", "2606:4700::1111"]


@pytest.mark.parametrize("address", DENIED)
def test_address_is_denied_unless_listed(address: str) -> None:
    assert not AddressPolicy().is_public(address)
    assert not AddressPolicy().is_listed(address)
    if "%" not in address:
        assert AddressPolicy([address]).is_listed(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_control_public_address_is_allowed(address: str) -> None:
    assert AddressPolicy().is_public(address)


def test_listed_network_is_a_network() -> None:
    assert AddressPolicy(["10.1.0.0/16"]).is_listed("10.1.255.255")
    assert not AddressPolicy(["10.1.0.0/16"]).is_listed("10.2.0.0")
    for wrong in ("10.1.0.0/8", "localhost", ""):
        with pytest.raises(UsageError, match="no network"):
            AddressPolicy([wrong])


SPELLINGS = ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0", "localhost"]


@pytest.mark.parametrize("host", SPELLINGS)
@pytest.mark.attack
def test_loopback_is_denied_however_it_is_spelled(host: str) -> None:
    async def run() -> None:
        async with listening() as receiver:
            for listed, arrives in (((), 0), ((*LOOPBACK, "0.0.0.0/8"), 1)):
                hooks = webhooks(listed)
                hooks.send(receiver.url(host), {})
                await hooks.aclose()
                assert hooks.statistics().delivered == arrives
                assert receiver.connections == arrives

    asyncio.run(run())


@pytest.mark.attack
def test_name_that_turns_local_is_denied_at_each_attempt() -> None:
    """It answers public first, then loopback: the second look-up is checked like the first."""

    async def run() -> None:
        async with listening(lambda _: answer(500)) as receiver:
            listed_first = naming(["127.0.0.1"], ["127.0.0.2"])
            hooks = webhooks(["127.0.0.1"], resolve=listed_first)
            hooks.send(receiver.url("hooks.example"), {})
            await hooks.aclose()
            assert (hooks.statistics().failed, receiver.connections) == (1, 1)
            control = webhooks(resolve=naming(["127.0.0.1"], ["127.0.0.1"]))
            control.send(receiver.url("hooks.example"), {})
            await control.aclose()
            assert receiver.connections == 4

    asyncio.run(run())


@pytest.mark.attack
def test_name_is_resolved_once_for_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was checked is what is connected to: the system's resolver is never asked the name."""
    asked: list[object] = []
    real = socket.getaddrinfo

    def getaddrinfo(host: str, *rest: object, **named: object) -> object:
        asked.append(host)
        return real(host, *rest, **named)  # type: ignore[arg-type]

    async def run() -> None:
        async with listening() as receiver:
            hooks = webhooks(resolve=naming(["127.0.0.1"]))
            monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
            hooks.send(receiver.url("hooks.example"), {})
            await hooks.aclose()
            assert receiver.connections == 1

    asyncio.run(run())
    assert "hooks.example" not in asked


@pytest.mark.attack
def test_redirect_is_not_followed() -> None:
    async def run() -> None:
        async with listening() as inner:
            there = f"location: {inner.url()}"
            async with listening(lambda _: answer(307, there)) as outer:
                hooks = webhooks()
                hooks.send(outer.url(), {})
                await hooks.aclose()
                assert (hooks.statistics().failed, outer.connections) == (1, 1)
                assert inner.connections == 0
                hooks = webhooks()
                hooks.send(inner.url(), {})
                await hooks.aclose()
                assert inner.connections == 1

    asyncio.run(run())


@pytest.mark.attack
def test_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with listening() as proxy, listening() as receiver:
            for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
                monkeypatch.setenv(name, proxy.url(path=""))
            hooks = webhooks()
            hooks.send(receiver.url(), {})
            await hooks.aclose()
            assert (proxy.connections, receiver.connections) == (0, 1)

    asyncio.run(run())


@pytest.mark.parametrize(
    "url",
    [
        "http://1.1.1.1/",  # in plain
        "https://1.1.1.1:22/",
        "https://1.1.1.1:25/",
        "https://1.1.1.1:6379/",
        "https://10.0.0.1/",
        "https://[::ffff:169.254.169.254]/",
    ],
)
def test_plain_and_odd_ports_are_for_listed_addresses_only(url: str) -> None:
    """Denied is final and makes no connection: nothing is tried a second time."""

    async def run() -> None:
        hooks = webhooks(LOOPBACK, settings=WebhookSettings(delays_s=(600.0,)))
        hooks.send(url, {})
        await hooks.aclose()
        assert hooks.statistics().failed == 1

    asyncio.run(run())


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hooks.example",
        "//hooks.example/",
        "ftp://hooks.example/",
        "file:///etc/passwd",
        "gopher://hooks.example/",
        "https://",
        "https:///path",
        "https://user:word@hooks.example/",
        "https://hooks.example@10.0.0.1/",
        "https://hooks.example:0/",
        "https://hooks.example:99999/",
        "https://hooks.example\\@10.0.0.1/",
        "https://hooks.example/a b",
        "https://hooks.example/\r\nx: y",
        "https://hooks.example/\x00",
        "https://höks.example/",
        "https://-x.example/",
        "https://a_b%0d.example/",
        "https://[fe80::1%25lo\r\n]/",
        "https://[::1/",
        "https://x/" + "a" * 3000,
    ],
)
def test_what_is_no_plain_url_is_refused_when_it_is_given(url: str) -> None:
    with pytest.raises(UsageError, match="webhook URL"):
        Webhooks.check(url)


def test_target_of_a_good_url() -> None:
    target = target_of("https://Hooks.Example:8443/a/b?c=d#gone")
    assert (target.host, target.port, target.path) == ("hooks.example", 8443, "/a/b?c=d")
    assert target.authority == "hooks.example:8443"
    assert target_of("http://[2606:4700::1111]").authority == "[2606:4700::1111]"


# ── TLS ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory, require: Require) -> Path:
    """A certificate for `hooks.example` with its key."""
    require("openssl", shutil.which("openssl") is not None, "run: apt-get install openssl")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-keyout", "key", "-out", "cert", "-days", "2", "-subj", "/CN=x",
         "-addext", "subjectAltName=DNS:hooks.example"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return folder


@pytest.mark.parametrize(
    ("host", "is_trusted", "arrives"),
    [("hooks.example", True, 1), ("other.example", True, 0), ("hooks.example", False, 0)],
    ids=["control", "another name", "unknown authority"],
)
def test_certificate_is_checked_for_the_name_in_the_url(
    certificate: Path, host: str, is_trusted: bool, arrives: int
) -> None:
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate / "cert", certificate / "key")
    trusting = ssl.create_default_context(cafile=certificate / "cert") if is_trusted else None

    async def run() -> None:
        async with listening(tls=serving) as receiver:
            hooks = webhooks(resolve=naming(["127.0.0.1"]), tls=trusting)
            hooks.send(receiver.url(host, "https"), {})
            await hooks.aclose()
            assert (hooks.statistics().delivered, len(receiver.received)) == (arrives, arrives)

    asyncio.run(run())


def test_next_address_is_tried_when_one_does_not_answer() -> None:
    async def run() -> None:
        async with listening() as receiver:
            hooks = webhooks(resolve=naming(["::1", "127.0.0.1"]))
            hooks.send(receiver.url("hooks.example"), {})
            await hooks.aclose()
            assert receiver.connections == 1

    asyncio.run(run())
