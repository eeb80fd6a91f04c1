"""Network policy: where a sandbox may connect to, as its caller writes it and as it is checked.

Pure values. The egress proxy decides by them outside the sandbox, on the address it is about to
dial. The invariant: what is not plainly allowed is refused, and an empty list allows nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network

    from cellwall.model.packages import PackagePolicy

Mode = Literal["none", "allow", "open"]
MODES: tuple[Mode, ...] = ("none", "allow", "open")
"""Modes, the strictest first."""

BROKER = "packages.cellwall.internal"
"""Host name of the package broker inside a sandbox whose policy has packages."""
WEB_PORTS = (80, 443)
"""Ports of a rule that names none."""
_MOST_RULES = 1000
_MOST_PORTS = 64
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_METHOD = re.compile(r"[A-Z][A-Z-]{0,30}")
_PATH = re.compile(r"/[\x21-\x7e]{0,1023}")
_FORMS = "such as example.org, *.example.org, example.org:5432, or 192.0.2.0/24:443"
_BOUNDS: dict[str, tuple[int, int]] = {
    "connections": (1, 1000),
    "transfer_mb": (1, 10_000_000),
    "rate_kb_s": (1, 100_000_000),
}


@dataclass(frozen=True, slots=True)
class NetworkRule:
    """One destination that is allowed; either `name` or `network` is set."""

    name: str = ""
    """Host name in lower case; `*.example.org` means every name below example.org, not itself."""
    network: IPv4Network | IPv6Network | None = None
    """Literal addresses that may be dialled."""
    ports: tuple[int, ...] = WEB_PORTS
    methods: tuple[str, ...] = ()
    """HTTP methods; empty: all. With methods or paths the rule allows HTTP only, and TLS is opened
    to see it."""
    paths: tuple[str, ...] = ()
    """Prefixes of the request's path; empty: all."""

    def matches_name(self, name: str) -> bool:
        """Whether a host name, in lower case and without a final dot, is one of the rule's."""
        if self.name.startswith("*."):
            return name.endswith(self.name[1:]) and len(name) > len(self.name) - 1
        return bool(self.name) and name == self.name

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
        if self.network is None:
            host = self.name
        else:
            host = f"[{self.network}]" if self.network.version == 6 else str(self.network)
        ports = "" if self.ports == WEB_PORTS else ":" + ",".join(map(str, self.ports))
        return host + ports

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "host": self.name or str(self.network),
            "ports": list(self.ports),
            "methods": list(self.methods),
            "paths": list(self.paths),
        }


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """Network policy of one sandbox. The default is no network."""

    mode: Mode = "none"
    """`none`: nothing. `allow`: what a rule allows. `open`: every public address."""
    rules: tuple[NetworkRule, ...] = ()
    connections: int = 256
    """Most connections at one time."""
    transfer_mb: int = 10_240
    """Most MiB in both directions together, over the sandbox's life."""
    rate_kb_s: int | None = None
    """Most KiB a second in both directions together; None: no rate of its own."""
    packages: PackagePolicy | None = None
    """What may be installed from the operator's registries, in every mode. None: nothing."""

    @classmethod
    def of(cls, value: object) -> NetworkPolicy:
        """Return the policy that a caller wrote; `UsageError` if it is none.

        Takes None, `"none"`, `"open"`, `"packages"` (nothing but the package broker), a list of
        rules, or a mapping with `mode`, `allow`, `connections`, `transfer_mb`, `rate_kb_s` and
        `packages` (what `PackagePolicy.of` takes). A rule is a text such as `example.org`,
        `*.example.org:443,8443`, `192.0.2.0/24:5432` or `[2001:db8::/32]:443`, or a mapping with
        `host`, `ports`, `methods` and `paths`.
        """
        if isinstance(value, NetworkPolicy):
            return value
        if value is None:
            return cls()
        if isinstance(value, str):
            return cls(packages=_packages(True)) if value == "packages" else cls(_mode(value))
        if isinstance(value, Mapping):
            return _of_mapping(value)
        if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray)):
            return cls("allow", _rules(value))
        raise _wrong(f"{value!r:.60} is no policy", 'say "none", "open", or a list of rules')

    def __post_init__(self) -> None:
        """Raise `UsageError` on a mode or number that is out of bounds."""
        if self.mode not in MODES:
            raise _wrong(f"mode {self.mode!r:.60} is not known", f"modes: {', '.join(MODES)}")
        if self.rules and self.mode != "allow":
            raise _wrong(f"mode {self.mode!r} takes no rules", "leave `allow` or `mode` out")
        for name, (low, high) in _BOUNDS.items():
            number = getattr(self, name)
            if number is None and name == "rate_kb_s":
                continue
            if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
                raise _wrong(
                    f"{name}: {number!r:.60} is out of bounds",
                    f"give a whole number from {low} to {high}",
                )

    @property
    def is_none(self) -> bool:
        """Whether the sandbox has no network at all, and no package broker."""
        return self.mode == "none" and self.packages is None

    @property
    def opens_tls(self) -> bool:
        """Whether a rule looks at requests in TLS, for which programs trust the proxy."""
        return any(rule.opens_tls for rule in self.rules)

    def allows_name(self, name: str, port: int) -> bool:
        """Whether a name, in lower case, may be connected to at a port."""
        if self.mode == "open":
            return True
        return any(rule.matches_name(name) and port in rule.ports for rule in self.rules)

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON, which `of` reads."""
        found: dict[str, Any] = {"mode": self.mode}
        if self.mode == "allow":
            found["allow"] = [rule.as_json() for rule in self.rules]
        if not self.is_none:
            found |= {name: getattr(self, name) for name in _BOUNDS}
        if self.packages is not None:
            found["packages"] = self.packages.plain()
        return found

    def __str__(self) -> str:
        """Return the policy in a few words."""
        words: str = self.mode
        if self.mode == "allow":
            words += f" {', '.join(map(str, self.rules)) or 'nothing'}"
        return words if self.packages is None else f"{words}; {self.packages}"


NO_NETWORK = NetworkPolicy()


def _wrong(what: str, remedy: str) -> UsageError:
    return UsageError(f"network: {what}", remedy=remedy)


def _mode(text: str) -> Mode:
    if text == "none":
        return "none"
    if text == "open":
        return "open"
    raise _wrong(
        f"{text!r:.60} is no policy",
        'say "none", "packages" or "open", or give a list of rules, such as ["example.org"]',
    )


def _packages(value: object) -> PackagePolicy | None:
    from cellwall.model.packages import PackagePolicy  # most programs install nothing

    found = PackagePolicy.of(value)
    return None if found.is_none else found


def _of_mapping(value: Mapping[Any, Any]) -> NetworkPolicy:
    known = ("mode", "allow", "packages", *_BOUNDS)
    unknown = sorted(set(map(str, value)) - set(known))
    if unknown:
        raise _wrong(f"unknown name {unknown[0]!r:.60}", f"names: {', '.join(known)}")
    allowed = value.get("allow")
    mode = value.get("mode", "none" if allowed is None else "allow")
    if mode == "allow" and allowed is None:
        allowed = ()  # an absent list allows as little as an empty one
    rules = () if allowed is None else _rules(allowed)
    numbers = {name: value[name] for name in _BOUNDS if value.get(name) is not None}
    packages = None if value.get("packages") is None else _packages(value["packages"])
    return replace(NetworkPolicy(mode, rules, packages=packages), **numbers)


def _rules(values: object) -> tuple[NetworkRule, ...]:
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise _wrong(f"allow: {values!r:.60} is no list", f"give a list of rules, {_FORMS}")
    listed = list(values)
    if len(listed) > _MOST_RULES:
        raise _wrong(f"allow: {len(listed)} rules", f"give at most {_MOST_RULES}")
    return tuple(map(_rule, listed))


def _rule(value: object) -> NetworkRule:
    if isinstance(value, NetworkRule):
        return value
    if isinstance(value, str):
        text, listed = _split(value)
        return _destination(text, value, ports=listed)
    if isinstance(value, Mapping):
        return _rule_of_mapping(value)
    raise _wrong(f"allow: {value!r:.60} is no rule", f"give a text, {_FORMS}")


def _rule_of_mapping(value: Mapping[Any, Any]) -> NetworkRule:
    unknown = sorted(set(map(str, value)) - {"host", "ports", "methods", "paths"})
    if unknown:
        raise _wrong(
            f"allow: unknown name {unknown[0]!r:.60}", "names: host, ports, methods, paths"
        )
    host = value.get("host")
    if not isinstance(host, str):
        raise _wrong(f"allow: host {host!r:.60} is no text", f"give a host, {_FORMS}")
    ports = WEB_PORTS if value.get("ports") is None else _ports(value["ports"], host)
    methods = _texts(value.get("methods"), _METHOD, "methods", "a method in capitals, such as GET")
    paths = _texts(value.get("paths"), _PATH, "paths", "a path that begins with /")
    found = _destination(host, host, ports=ports)
    return replace(found, methods=methods, paths=paths)


def _split(text: str) -> tuple[str, tuple[int, ...]]:
    """Take `host:ports` apart; an IPv6 network with ports stands in brackets."""
    if "://" in text or "@" in text:
        raise _wrong(f"allow: {text!r:.60} is a URL", f"give the host alone, {_FORMS}")
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        before, colon, ports = rest.partition(":")
        if not closed or before:
            raise _wrong(f"allow: {text!r:.60} is no rule", f"write a rule, {_FORMS}")
        return host, _ports(ports.split(","), text) if colon else WEB_PORTS
    host, colon, ports = text.partition(":")
    if colon and ":" in ports:  # an IPv6 network, without ports
        return text, WEB_PORTS
    return host, _ports(ports.split(","), text) if colon else WEB_PORTS


def _ports(values: object, rule: str) -> tuple[int, ...]:
    found = []
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        values = [values]
    for value in values:
        number = int(value) if isinstance(value, str) and value.isdecimal() else value
        if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 65_536:
            raise _wrong(
                f"allow: {rule!r:.60}: port {value!r:.60}", "give a number from 1 to 65535"
            )
        found.append(number)
    if not 0 < len(found) <= _MOST_PORTS:
        raise _wrong(f"allow: {rule!r:.60}: {len(found)} ports", f"give 1 to {_MOST_PORTS} ports")
    return tuple(sorted(set(found)))


def _texts(values: object, form: re.Pattern[str], what: str, remedy: str) -> tuple[str, ...]:
    if values is None:
        return ()
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise _wrong(f"allow: {what}: {values!r:.60} is no list", f"give a list with {remedy}")
    found = []
    for value in values:
        if not isinstance(value, str) or not form.fullmatch(value):
            raise _wrong(f"allow: {what}: {value!r:.60}", f"give {remedy}")
        found.append(value)
    return tuple(found)


def _destination(host: str, written: str, *, ports: tuple[int, ...]) -> NetworkRule:
    if not host.isascii():
        raise _wrong(
            f"allow: {written!r:.60}: letters beyond ASCII look alike",
            "write the name as the DNS has it, beginning with xn--",
        )
    network = _network(host, written)
    if network is not None:
        return NetworkRule(network=network, ports=ports)
    return NetworkRule(_name(host, written), ports=ports)


def _network(host: str, written: str) -> IPv4Network | IPv6Network | None:
    """Return the addresses that a host stands for; None if it is a name."""
    from ipaddress import ip_network  # most programs have no network

    try:
        found = ip_network(host)
    except ValueError as error:
        if "host bits" in str(error):
            raise _wrong(
                f"allow: {written!r:.60}: {error}", "write the first address of the network"
            ) from None
        return None
    if found.prefixlen == 0:
        raise _wrong(
            f"allow: {written!r:.60} is every address", 'say network="open" if that is meant'
        )
    return found


def _name(host: str, written: str) -> str:
    name = host.lower().removesuffix(".")
    stem = name.removeprefix("*.")
    labels = stem.split(".")
    if len(stem) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise _wrong(f"allow: {written!r:.60} is no host name", f"write a rule, {_FORMS}")
    if labels[-1].isdecimal() or labels[-1].startswith("0x"):
        raise _wrong(
            f"allow: {written!r:.60} is an odd spelling of an address",
            "write an address as four numbers, such as 192.0.2.1",
        )
    if name.startswith("*.") and len(labels) < 2:
        raise _wrong(
            f"allow: {written!r:.60} is too wide", "name two labels after the star at least"
        )
    return name
