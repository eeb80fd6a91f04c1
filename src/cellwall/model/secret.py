"""Secret: a value that requests of a sandbox carry to certain hosts, and that it never sees.

Inside the sandbox stands a placeholder; the egress proxy puts the value into requests to the hosts
the secret is bound to, and nowhere else. The invariant: the value leaves a `Secret` by `reveal`
alone. It is in no text of it, and it cannot be pickled or copied.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from cellwall.model.errors import UsageError
from cellwall.model.network import NetworkPolicy
from cellwall.model.network_rule import WEB_PORTS

PLACES = ("header", "query", "basic")
"""Places of a request into which a value may be put: header fields, the query, and the user and
password of `Authorization: Basic`."""
_MOST = 32
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]{6,4094})[\x21-\x7e]")
_PLACEHOLDER = re.compile(r"[A-Za-z0-9_.-]{16,4096}")
_KNOWN_BEGINNINGS = (
    *("sk-ant-api03-", "sk-ant-", "sk-proj-", "sk-svcacct-", "sk-", "sk_live_", "sk_test_"),
    *("pk_live_", "pk_test_", "rk_live_", "rk_test_", "github_pat_", "ghp_", "gho_", "ghs_"),
    *("glpat-", "xoxb-", "xoxp-", "hf_", "npm_", "pypi-", "AIza", "AKIA", "SG.", "r8_", "gsk_"),
)
"""Beginnings that services give their keys, and by which clients know them. A placeholder keeps
one of these and nothing else of a value."""
_LEAST_RANDOM = 20
"""Random characters of a placeholder, at least: about 119 bits."""
_HOSTS = "such as api.example.org, api.example.org:8443, or http://intern.example.org:8080"


@dataclass(frozen=True, slots=True)
class SecretHost:
    """One server that gets the value."""

    name: str
    """Host name in lower case."""
    port: int
    is_plain: bool = False
    """Whether it gets the value without TLS, readable on its way."""

    def __str__(self) -> str:
        """Return the host as its caller may write it."""
        return f"{'http://' if self.is_plain else ''}{self.name}:{self.port}"


class Secret:
    """One secret of one sandbox."""

    __slots__ = ("_value", "hosts", "name", "placeholder", "places")

    def __init__(
        self,
        name: str,
        value: str,
        *,
        hosts: Iterable[str],
        places: Iterable[str] = PLACES,
        placeholder: str | None = None,
    ) -> None:
        """`name` is the variable inside that has the placeholder; `hosts` are those it is for.

        A host is a name, with `:PORT` unless it is 443; `http://` before it means a server without
        TLS. `places` are those of `PLACES` that apply. A `placeholder` replaces the one that is
        made up: random, of the value's length, beginning as the keys of its service do. Raises
        `UsageError`, which never has the value.
        """
        self.name = _checked_name(name)
        self._value = _checked_value(name, value)
        self.hosts = _checked_hosts(name, hosts)
        self.places = _checked_places(name, places)
        self.placeholder = _checked_placeholder(name, placeholder or made_up(value), value)

    def reveal(self) -> str:
        """Return the value. SECURITY: for the egress proxy and the store alone."""
        return self._value

    def is_for(self, name: str, port: int, *, is_plain: bool) -> bool:
        """Whether a server gets the value."""
        return SecretHost(name, port, is_plain) in self.hosts

    def __repr__(self) -> str:
        """Return it without its value."""
        hosts = ", ".join(map(str, self.hosts))
        return f"Secret({self.name!r}, '***', hosts=[{hosts}])"

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: a pickle or a copy would carry the value further."""
        raise TypeError(f"the secret {self.name} cannot be pickled or copied")

    def for_proxy(self) -> dict[str, Any]:
        """Return it with its value, as the egress proxy gets it."""
        return {
            "name": self.name,
            "value": self._value,
            "hosts": [str(host) for host in self.hosts],
            "places": list(self.places),
            "placeholder": self.placeholder,
        }

    @classmethod
    def of_proxy(cls, found: Mapping[str, Any]) -> Secret:
        """Return what `for_proxy` gave."""
        return cls(
            found["name"],
            found["value"],
            hosts=found["hosts"],
            places=found["places"],
            placeholder=found["placeholder"],
        )


def secrets_of(value: object) -> tuple[Secret, ...]:
    """Return the secrets that a caller wrote; `UsageError` if they are none.

    Takes None, or a list of `Secret` or of mappings with `name`, `value`, `hosts`, `places` and
    `placeholder`.
    """
    if value is None:
        return ()
    if isinstance(value, (str, bytes, Mapping, Secret)) or not isinstance(value, Iterable):
        raise _wrong("they are no list", "give a list of Secret(name, value, hosts=[…])")
    found = tuple(map(_one, value))
    if len(found) > _MOST:
        raise _wrong(f"there are {len(found)}", f"give at most {_MOST}")
    _check_apart(found)
    return found


def check_reachable(secrets: Iterable[Secret], policy: NetworkPolicy) -> None:
    """Raise `UsageError` for a secret whose host a network policy does not allow."""
    for secret in secrets:
        for host in secret.hosts:
            denied = policy.denial_of_name(host.name, host.port)
            if denied is not None:
                raise _wrong(
                    f"{secret.name} is for {host.name} port {host.port}, which the network policy "
                    "denies",
                    f"take {denied} off its deny list",
                )
            if not policy.allows_name(host.name, host.port):
                raise _wrong(
                    f"{secret.name} is for {host.name} port {host.port}, which the network policy "
                    "does not allow",
                    f"add {host.name}:{host.port} to its rules",
                )


def made_up(value: str) -> str:
    """Return a random placeholder with a value's length and its service's beginning."""
    beginning = next((each for each in _KNOWN_BEGINNINGS if value.startswith(each)), "")
    if 2 * len(beginning) > len(value):
        beginning = ""  # the rest would be too short to hide much
    count = max(_LEAST_RANDOM, len(value) - len(beginning))
    letters = string.ascii_letters + string.digits
    import secrets  # the package of this file imports it in every process that runs something

    return beginning + "".join(secrets.choice(letters) for _ in range(count))


def _wrong(what: str, remedy: str) -> UsageError:
    return UsageError(f"secrets: {what}", remedy=remedy)


def _one(value: object) -> Secret:
    if isinstance(value, Secret):
        return value
    if not isinstance(value, Mapping):
        raise _wrong("one of them is no secret", "give Secret(name, value, hosts=[…])")
    names = {"name", "value", "hosts", "places", "placeholder"}
    unknown = sorted(set(map(str, value)) - names)
    if unknown:
        raise _wrong(f"unknown name {unknown[0]!r:.60}", f"names: {', '.join(sorted(names))}")
    return Secret(
        value.get("name", ""),
        value.get("value", ""),
        hosts=value.get("hosts") or (),
        places=value.get("places") or PLACES,
        placeholder=value.get("placeholder"),
    )


def _check_apart(found: tuple[Secret, ...]) -> None:
    """Raise `UsageError` for two secrets that would be taken for one another."""
    for number, one in enumerate(found):
        for other in found[number + 1 :]:
            if one.name == other.name:
                raise _wrong(f"{one.name} is given twice", "give each name once")
            if one.placeholder in other.placeholder or other.placeholder in one.placeholder:
                raise _wrong(
                    f"the placeholders of {one.name} and {other.name} are alike",
                    "leave `placeholder` out, or give two that differ",
                )


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _wrong(
            f"{name!r:.60} is no name", "give the name of a variable, of letters, digits and _"
        )
    return name


def _checked_value(name: str, value: object) -> str:
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        raise _wrong(
            f"the value of {name} cannot stand in a header field",
            "give 8 to 4096 printable ASCII characters without spaces around them",
        )
    return value


def _checked_places(name: str, places: object) -> tuple[str, ...]:
    listed: list[str] = []
    if isinstance(places, Iterable) and not isinstance(places, (str, bytes)):
        listed = [*map(str, places)]
    if not listed or set(listed) - set(PLACES):
        raise _wrong(f"{name}: places {places!r:.60}", f"give some of: {', '.join(PLACES)}")
    return tuple(each for each in PLACES if each in listed)


def _checked_placeholder(name: str, placeholder: object, value: str) -> str:
    if not isinstance(placeholder, str) or not _PLACEHOLDER.fullmatch(placeholder):
        raise _wrong(
            f"the placeholder of {name} is none",
            "give 16 characters or more, of letters, digits, `-`, `_` and `.`",
        )
    if placeholder in value or value in placeholder:
        raise _wrong(
            f"the placeholder of {name} has its value in it, or is in it",
            "leave `placeholder` out, or give another",
        )
    return placeholder


def _checked_hosts(name: str, hosts: object) -> tuple[SecretHost, ...]:
    if isinstance(hosts, (str, bytes, Mapping)) or not isinstance(hosts, Iterable):
        raise _wrong(f"{name}: its hosts are no list", f"give a list of hosts, {_HOSTS}")
    found = tuple(_host(name, text) for text in hosts)
    if not found:
        raise _wrong(
            f"{name} has no host",
            f"name the hosts that may get it, {_HOSTS}; what any host may get is an ordinary "
            "variable (env)",
        )
    return found


def _host(name: str, text: object) -> SecretHost:
    if not isinstance(text, str):
        raise _wrong(f"{name}: host {text!r:.60} is no text", f"give a host, {_HOSTS}")
    bare = text.removeprefix("http://")
    try:
        (rule,) = NetworkPolicy.of([bare]).rules
    except UsageError as error:
        why = error.message.removeprefix("network: allow: ")
        raise _wrong(f"{name}: {why}", f"give a host, {_HOSTS}") from None
    if rule.network is not None or rule.name.startswith("*."):
        raise _wrong(
            f"{name}: {text!r:.60} is not the name of one host", f"name each host, {_HOSTS}"
        )
    is_plain = bare != text
    ports = rule.ports if rule.ports != WEB_PORTS else ((80,) if is_plain else (443,))
    if "," in bare:
        raise _wrong(f"{name}: {text!r:.60} has more than one port", "give a host for each port")
    return SecretHost(rule.name, ports[0], is_plain)
