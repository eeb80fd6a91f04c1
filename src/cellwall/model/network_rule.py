"""Destinations of a network policy: allowed, denied, or told more, and how callers write them.

Pure values. The invariant: a text means one destination or none. Look-alikes, odd spellings of
addresses, URLs and what is wider than it looks are refused with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network

WEB_PORTS = (80, 443)
"""Ports of a rule that names none."""
_MOST_RULES = 1000
_MOST_PORTS = 64
_MOST_FIELDS = 32
_FIELD = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_FIELD_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e\t]{0,4094}[\x21-\x7e])?")
_OF_CONNECTIONS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer"}
    | {"upgrade", "expect", "proxy-connection", "proxy-authorization", "proxy-authenticate"}
)
"""Header fields that say where a request goes, where it ends, or what its connection becomes."""
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_METHOD = re.compile(r"[A-Z][A-Z-]{0,30}")
_PATH = re.compile(r"/[\x21-\x7e]{0,1023}")
_FORMS = "such as example.org, *.example.org, example.org:5432, or 192.0.2.0/24:443"
_IPV4_MAPPED = "::ffff:0:0/96"
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class _Place:
    """A host name or literal addresses; either `name` or `network` is set."""

    name: str = ""
    """Host name in lower case; `*.example.org` means every name below example.org, not itself."""
    network: IPv4Network | IPv6Network | None = None
    """Literal addresses."""

    def matches_name(self, name: str) -> bool:
        """Whether a host name, in lower case and without a final dot, is one of the place's."""
        if self.name.startswith("*."):
            return name.endswith(self.name[1:]) and len(name) > len(self.name) - 1
        return bool(self.name) and name == self.name

    def _host(self) -> str:
        if self.network is None:
            return self.name
        return f"[{self.network}]" if self.network.version == 6 else str(self.network)


@dataclass(frozen=True, slots=True)
class NetworkRule(_Place):
    """One destination that is allowed."""

    ports: tuple[int, ...] = WEB_PORTS
    methods: tuple[str, ...] = ()
    """HTTP methods; empty: all. With methods or paths the rule allows HTTP only, and TLS is opened
    to see it."""
    paths: tuple[str, ...] = ()
    """Prefixes of the request's path; empty: all."""

    @property
    def looks_at_requests(self) -> bool:
        """Whether single HTTP requests decide."""
        return bool(self.methods or self.paths)

    @property
    def opens_tls(self) -> bool:
        """Whether requests in TLS are looked at as well; port 80 has none."""
        return self.looks_at_requests and set(self.ports) != {80}

    def __str__(self) -> str:
        """Return the rule as text; ports are left out where they are the web's."""
        return self._host() + ("" if self.ports == WEB_PORTS else _port_text(self.ports))

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "host": self.name or str(self.network),
            "ports": list(self.ports),
            "methods": list(self.methods),
            "paths": list(self.paths),
        }


@dataclass(frozen=True, slots=True)
class DeniedDestination(_Place):
    """One destination that is refused, although the rest of the policy would let it pass."""

    ports: tuple[int, ...] = ()
    """Ports that are denied; empty: every port."""

    def denies_port(self, port: int | None) -> bool:
        """Whether a port is denied; None: whether every port is."""
        return not self.ports or port in self.ports

    def __str__(self) -> str:
        """Return it as text; ports are left out where they are all."""
        return self._host() + (_port_text(self.ports) if self.ports else "")

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON, without ports where they are all."""
        ports = {"ports": list(self.ports)} if self.ports else {}
        return {"host": self.name or str(self.network), **ports}


@dataclass(frozen=True, slots=True)
class SetHeaders(_Place):
    """Header fields that requests to one server get, in place of their own of these names."""

    ports: tuple[int, ...] = WEB_PORTS
    fields: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Names and values. They are no secrets: the owner of the sandbox reads them in its policy."""

    @property
    def opens_tls(self) -> bool:
        """Whether requests in TLS get them as well; port 80 has none."""
        return set(self.ports) != {80}

    def __str__(self) -> str:
        """Return it as text, without the values."""
        names = ", ".join(name for name, _ in self.fields)
        return f"{names} at {self.name}{'' if self.ports == WEB_PORTS else _port_text(self.ports)}"

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {"host": self.name, "ports": list(self.ports), "set": dict(self.fields)}


def rules_of(values: object) -> tuple[NetworkRule, ...]:
    """Return the rules that a caller listed as `allow`; `UsageError` if they are none."""
    return _listed("allow", values, _rule)


def denied_of(values: object) -> tuple[DeniedDestination, ...]:
    """Return the destinations that a caller listed as `deny`; `UsageError` if they are none."""
    return _listed("deny", values, _denied)


def headers_of(values: object) -> tuple[SetHeaders, ...]:
    """Return what a caller listed as `headers`; `UsageError` if it is none of that."""
    return _listed("headers", values, _set_headers)


class _Wrong(Exception):
    """What is wrong with one entry, and its remedy."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.remedy = remedy


def _port_text(ports: tuple[int, ...]) -> str:
    return ":" + ",".join(map(str, ports))


def _listed(name: str, values: object, one: Callable[[object], _V]) -> tuple[_V, ...]:
    try:
        if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
            raise _Wrong(f"{values!r:.60} is no list", f"give a list of rules, {_FORMS}")
        found = list(values)
        if len(found) > _MOST_RULES:
            raise _Wrong(f"{len(found)} rules", f"give at most {_MOST_RULES}")
        return tuple(map(one, found))
    except _Wrong as wrong:
        raise UsageError(f"network: {name}: {wrong}", remedy=wrong.remedy) from None


def _rule(value: object) -> NetworkRule:
    if isinstance(value, NetworkRule):
        return value
    place, ports, rest = _parts(value, ("methods", "paths"))
    _check_width(place, value)
    methods = _texts(rest.get("methods"), _METHOD, "methods", "a method in capitals, such as GET")
    paths = _texts(rest.get("paths"), _PATH, "paths", "a path that begins with /")
    return NetworkRule(place.name, place.network, ports or WEB_PORTS, methods, paths)


def _check_width(place: _Place, written: object) -> None:
    if place.network is not None and place.network.prefixlen == 0:
        raise _Wrong(f"{written!r:.60} is every address", 'say network="open" if that is meant')
    if place.name.startswith("*.") and place.name.count(".") < 2:
        raise _Wrong(f"{written!r:.60} is too wide", "name two labels after the star at least")


def _denied(value: object) -> DeniedDestination:
    if isinstance(value, DeniedDestination):
        return value
    place, ports, _ = _parts(value, ())
    if place.network is not None:
        _check_denied(place.network, value)
    return DeniedDestination(place.name, place.network, ports or ())


def _set_headers(value: object) -> SetHeaders:
    if isinstance(value, SetHeaders):
        return value
    if not isinstance(value, Mapping) or not isinstance(value.get("set"), Mapping):
        raise _Wrong(f"{value!r:.60} sets nothing", 'give {"host": name, "set": {field: value}}')
    place, ports, rest = _parts(value, ("set",))
    if not place.name:
        raise _Wrong(f"{value['host']!r:.60} is no host name", "give the name that is connected to")
    fields = tuple(rest["set"].items())
    if not 0 < len(fields) <= _MOST_FIELDS:
        raise _Wrong(f"{len(fields)} header fields", f"give 1 to {_MOST_FIELDS}")
    for name, text in fields:
        _check_field(name, text)
    return SetHeaders(place.name, None, ports or WEB_PORTS, fields)


def _check_field(name: object, text: object) -> None:
    if not isinstance(name, str) or not _FIELD.fullmatch(name):
        raise _Wrong(f"{name!r:.60} is no name of a header field", "give one such as X-Token")
    if name.lower() in _OF_CONNECTIONS:
        raise _Wrong(f"{name} says where a request goes or ends", "leave it to the request")
    if not isinstance(text, str) or not _FIELD_VALUE.fullmatch(text):
        raise _Wrong(
            f"the value of {name} cannot be in a header field",
            "give up to 4096 printable ASCII characters without space at either end",
        )


def _check_denied(network: IPv4Network | IPv6Network, written: object) -> None:
    """Raise `_Wrong` for a network that would deny less than it seems to."""
    from ipaddress import IPv6Network

    if network.version == 4 and network.prefixlen == 0:
        raise _Wrong(
            f"{written!r:.60} is every IPv4 address, and leaves those of IPv6",
            'say network="none", or allow what may be reached: all else is refused then',
        )
    if isinstance(network, IPv6Network) and network.subnet_of(IPv6Network(_IPV4_MAPPED)):
        raise _Wrong(
            f"{written!r:.60} are IPv4 addresses, and are dialled as such",
            f"write {network.network_address.ipv4_mapped}/{network.prefixlen - 96}",
        )


def _parts(
    value: object, further: tuple[str, ...]
) -> tuple[_Place, tuple[int, ...] | None, Mapping[Any, Any]]:
    """Return the place that an entry names, its ports (None: it names none), and its mapping.

    `further` are names that its mapping may have beside `host` and `ports`.
    """
    if isinstance(value, str):
        host, ports = _split(value)
        return _place(host, value), ports, {}
    if not isinstance(value, Mapping):
        raise _Wrong(f"{value!r:.60} is no rule", f"give a text, {_FORMS}")
    known = ("host", "ports", *further)
    unknown = sorted(set(map(str, value)) - set(known))
    if unknown:
        raise _Wrong(f"unknown name {unknown[0]!r:.60}", f"names: {', '.join(known)}")
    named, given = value.get("host"), value.get("ports")
    if not isinstance(named, str):
        raise _Wrong(f"host {named!r:.60} is no text", f"give a host, {_FORMS}")
    return _place(named, named), None if given is None else _ports(given, named), value


def _split(text: str) -> tuple[str, tuple[int, ...] | None]:
    """Take `host:ports` apart; an IPv6 network with ports stands in brackets."""
    if "://" in text or "@" in text:
        raise _Wrong(f"{text!r:.60} is a URL", f"give the host alone, {_FORMS}")
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        before, colon, ports = rest.partition(":")
        if not closed or before:
            raise _Wrong(f"{text!r:.60} is no rule", f"write a rule, {_FORMS}")
        return host, _ports(ports.split(","), text) if colon else None
    host, colon, ports = text.partition(":")
    if colon and ":" in ports:  # an IPv6 network, without ports
        return text, None
    return host, _ports(ports.split(","), text) if colon else None


def _ports(values: object, written: str) -> tuple[int, ...]:
    found = []
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        values = [values]
    for value in values:
        number = int(value) if isinstance(value, str) and value.isdecimal() else value
        if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 65_536:
            raise _Wrong(f"{written!r:.60}: port {value!r:.60}", "give a number from 1 to 65535")
        found.append(number)
    if not 0 < len(found) <= _MOST_PORTS:
        raise _Wrong(f"{written!r:.60}: {len(found)} ports", f"give 1 to {_MOST_PORTS} ports")
    return tuple(sorted(set(found)))


def _texts(values: object, form: re.Pattern[str], what: str, remedy: str) -> tuple[str, ...]:
    if values is None:
        return ()
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise _Wrong(f"{what}: {values!r:.60} is no list", f"give a list with {remedy}")
    found = []
    for value in values:
        if not isinstance(value, str) or not form.fullmatch(value):
            raise _Wrong(f"{what}: {value!r:.60}", f"give {remedy}")
        found.append(value)
    return tuple(found)


def _place(host: str, written: str) -> _Place:
    if not host.isascii():
        raise _Wrong(
            f"{written!r:.60}: letters beyond ASCII look alike",
            "write the name as the DNS has it, beginning with xn--",
        )
    network = _network(host, written)
    return _Place(_name(host, written)) if network is None else _Place(network=network)


def _network(host: str, written: str) -> IPv4Network | IPv6Network | None:
    """Return the addresses that a host stands for; None if it is a name."""
    from ipaddress import ip_network  # most programs have no network

    try:
        return ip_network(host)
    except ValueError as error:
        if "host bits" in str(error):
            raise _Wrong(
                f"{written!r:.60}: {error}", "write the first address of the network"
            ) from None
        return None


def _name(host: str, written: str) -> str:
    name = host.lower().removesuffix(".")
    stem = name.removeprefix("*.")
    labels = stem.split(".")
    if len(stem) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise _Wrong(f"{written!r:.60} is no host name", f"write a rule, {_FORMS}")
    if labels[-1].isdecimal() or labels[-1].startswith("0x"):
        raise _Wrong(
            f"{written!r:.60} is an odd spelling of an address",
            "write an address as four numbers, such as 192.0.2.1",
        )
    return name
