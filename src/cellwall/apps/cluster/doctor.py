"""What is wrong with a cluster, as one gateway's place sees it: certificates, nodes, clocks.

It asks each node once, with the gateway's certificate and without being a gateway: no fence counts
from that. It changes nothing. Each finding that is no PASS names the remedy.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import ssl
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import cellwall
from cellwall.cluster.certificates import Files, facts_of, gateway_context
from cellwall.cluster.gateway.wire.asking import ask
from cellwall.cluster.gateway.wire.links import Address, Links
from cellwall.model.errors import CellwallError
from cellwall.runtimes.base import Finding, Grade

if TYPE_CHECKING:
    from cellwall.cluster.gateway.settings import GatewaySettings

_SOON = datetime.timedelta(days=30)
_CLOCK_S = 60.0
"""Seconds by which a clock may differ: certificates begin an hour early, logs are compared."""
_ASK_S = 5.0
_LOOK = [(b"cellwall-look", b"1")]
_RENEW = "make it anew with `cellwall cluster cert`, and restart what has it"


class Seen(NamedTuple):
    """What one node said, or why it said nothing."""

    address: str
    facts: Mapping[str, Any]
    certificate: bytes
    """In PEM; empty if there was no connection."""
    ahead_s: float
    """How far its clock is ahead of this machine's."""
    why: str
    """Why it said nothing; empty: it has."""


async def findings(settings: GatewaySettings) -> list[Finding]:
    """Look at everything that a gateway with these settings needs. Raises nothing."""
    found = [*_own(settings)]
    if any(each.grade == "FAIL" for each in found):
        return found
    files = Files(Path(settings.certificate), Path(settings.key))
    context = gateway_context(Path(settings.authority), files)
    seen = await asyncio.gather(*(_look(each, context) for each in settings.nodes))
    return [*found, *judged(seen, settings.fence_s, datetime.datetime.now(datetime.UTC))]


def _own(settings: GatewaySettings) -> Iterator[Finding]:
    """Look at the files of the gateway."""
    now = datetime.datetime.now(datetime.UTC)
    for word, path, use in (
        ("authority", settings.authority, ""),
        ("certificate", settings.certificate, "calling"),
    ):
        try:
            yield _certificate(f"{word} {path}", Path(path).read_bytes(), use, now)
        except OSError as error:
            yield Finding(
                word, "FAIL", f"read {path}: {error.strerror}", "name the file in [gateway]"
            )
        except CellwallError as error:
            yield Finding(word, "FAIL", f"{path}: {error.message}", error.remedy or "")
    try:
        files = Files(Path(settings.certificate), Path(settings.key))
        gateway_context(Path(settings.authority), files)
    except CellwallError as error:
        yield Finding("key", "FAIL", error.message, error.remedy or "")


async def _look(text: str, context: ssl.SSLContext) -> Seen:
    """Ask one node."""
    pem = b""
    try:
        host, _, port = text.rpartition(":")
        address = Address(host.strip("[]"), int(port))
        async with asyncio.timeout(_ASK_S):
            _, writer = await asyncio.open_connection(*address, ssl=context)
            der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            pem = ssl.DER_cert_to_PEM_cert(der).encode()
            writer.close()
            links = Links(address, context)
            began_s = time.time()
            answer = await ask(links, b"/node", _LOOK)
            ended_s = time.time()
            links.cut()
        facts = json.loads(answer.body)
        ahead_s = float(facts["time"]) - (began_s + ended_s) / 2 if "time" in facts else 0.0
        return Seen(text, facts, pem, ahead_s, "")
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Seen(text, {}, pem, 0.0, str(error) or f"no answer within {_ASK_S:g} s")


def judged(seen: list[Seen], fence_s: float, now: datetime.datetime) -> Iterator[Finding]:
    """Judge what nodes said; pure."""
    names = Counter(str(each.facts["name"]) for each in seen if each.facts)
    for each in seen:
        if each.certificate:
            yield _certificate(f"certificate of {each.address}", each.certificate, "serving", now)
        if each.why:
            yield Finding(
                f"node {each.address}",
                "FAIL",
                each.why,
                "see that `cellwall node` runs there, that this machine reaches it, and that its "
                "certificate is of the same authority and for this address",
            )
        else:
            yield from _node(each, fence_s, names)


def _node(seen: Seen, fence_s: float, names: Counter[str]) -> Iterator[Finding]:
    facts, what = seen.facts, f"node {seen.address}"
    name, version = str(facts["name"]), str(facts.get("version", "unknown"))
    yield Finding(what, "PASS", f"{name}, {facts['state']}, version {version}")
    if names[name] > 1:
        yield Finding(
            what,
            "FAIL",
            f"the name {name} is that of another node, too: a state directory was copied",
            "stop one, remove `server/node` in its state directory, and start it again",
        )
    own = float(facts["fence_s"])
    if own != fence_s:
        grade: Grade = "FAIL" if own > fence_s else "CAUTION"
        yield Finding(
            what, grade, f"its fence_s = {own:g}, the gateway's {fence_s:g}", "give both the same"
        )
    if abs(seen.ahead_s) > _CLOCK_S:
        yield Finding(
            what,
            "CAUTION",
            f"its clock differs by {seen.ahead_s:.0f} s from this machine's",
            "keep both with NTP; sandboxes and fences do not need it, certificates and logs do",
        )
    if _minor(version) != _minor(cellwall.__version__):
        yield Finding(
            what,
            "CAUTION",
            f"its version is {version}, this one {cellwall.__version__}",
            "upgrade nodes first, then gateways, one minor version at a time",
        )


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _certificate(what: str, pem: bytes, use: str, now: datetime.datetime) -> Finding:
    """Look at the age and the use of a certificate. Raises UsageError if it is none."""
    facts = facts_of(pem)
    until = f"until {facts.ends:%Y-%m-%d}"
    if not facts.begins <= now < facts.ends:
        when = f"{facts.begins:%Y-%m-%d %H:%M} to {facts.ends:%Y-%m-%d %H:%M}"
        return Finding(what, "FAIL", f"it is valid from {when} alone", _RENEW)
    if facts.uses != ((use,) if use else ()):
        words = " and ".join(facts.uses) or "signing"
        return Finding(what, "FAIL", f"it is for {words}, not for {use or 'signing'} alone", _RENEW)
    if facts.ends - now < _SOON:
        return Finding(what, "CAUTION", f"it ends soon: {until}", _RENEW)
    return Finding(what, "PASS", until)
