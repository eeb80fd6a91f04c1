"""Network policy: where a sandbox may connect to, as its caller writes it and as it is checked.

Pure values. The egress proxy decides by them outside the sandbox, on the address it is about to
dial. The invariant: what is not plainly allowed is refused, an empty list allows nothing, and what
is denied is refused whatever allows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from cellwall.model.network_rule import DeniedDestination, NetworkRule, SetHeaders
    from cellwall.model.packages import PackagePolicy

Mode = Literal["none", "allow", "open"]
MODES: tuple[Mode, ...] = ("none", "allow", "open")
"""Modes, the strictest first."""

BROKER = "packages.cellwall.internal"
"""Host name of the package broker inside a sandbox whose policy has packages."""
_BOUNDS: dict[str, tuple[int, int]] = {
    "connections": (1, 1000),
    "transfer_mb": (1, 10_000_000),
    "rate_kb_s": (1, 100_000_000),
}


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """Network policy of one sandbox. The default is no network."""

    mode: Mode = "none"
    """`none`: nothing. `allow`: what a rule allows. `open`: every public address."""
    rules: tuple[NetworkRule, ...] = ()
    denied: tuple[DeniedDestination, ...] = ()
    """What is refused although the mode or a rule lets it pass."""
    connections: int = 256
    """Most connections at one time."""
    transfer_mb: int = 10_240
    """Most MiB in both directions together, over the sandbox's life."""
    rate_kb_s: int | None = None
    """Most KiB a second in both directions together; None: no rate of its own."""
    packages: PackagePolicy | None = None
    """What may be installed from the operator's registries, in every mode. None: nothing."""
    headers: tuple[SetHeaders, ...] = ()
    """What the egress proxy sets in requests, where they are allowed; the last of a name wins."""

    @classmethod
    def of(cls, value: object) -> NetworkPolicy:
        """Return the policy that a caller wrote; `UsageError` if it is none.

        Takes None, `"none"`, `"open"`, `"packages"` (nothing but the package broker), a list of
        rules, or a mapping with `mode`, `allow`, `deny`, `connections`, `transfer_mb`,
        `rate_kb_s`, `packages` (what `PackagePolicy.of` takes) and `headers`.
        A rule is a text such as `example.org`, `*.example.org:443,8443`, `192.0.2.0/24:5432` or
        `[2001:db8::/32]:443`, or a mapping with `host`, `ports`, `methods` and `paths`. What is
        denied is written alike, with `host` and `ports` alone; without ports it is every port. An
        entry of `headers` is a mapping with `host`, maybe `ports`, and `set`, which has values by
        header field.
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
            from cellwall.model.network_rule import rules_of  # most policies have none

            return cls("allow", rules_of(value))
        raise _wrong(f"{value!r:.60} is no policy", 'say "none", "open", or a list of rules')

    def __post_init__(self) -> None:
        """Raise `UsageError` on a mode or number that is out of bounds."""
        if self.mode not in MODES:
            raise _wrong(f"mode {self.mode!r:.60} is not known", f"modes: {', '.join(MODES)}")
        if self.rules and self.mode != "allow":
            raise _wrong(f"mode {self.mode!r} takes no rules", "leave `allow` or `mode` out")
        if self.denied and not self.rules and self.mode != "open":
            raise _wrong(
                "deny: nothing is allowed that could be denied",
                'say mode="open", or allow something; or leave `deny` out',
            )
        if self.headers and self.mode == "none":
            raise _wrong(
                "headers: there are no requests in which to set them",
                "allow the hosts, or leave `headers` out",
            )
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
        """Whether requests in TLS are looked at or changed, so that programs trust the proxy."""
        is_changed = any(each.opens_tls for each in self.headers)
        return is_changed or any(rule.opens_tls for rule in self.rules)

    def headers_for(self, name: str, port: int) -> list[tuple[str, str]]:
        """Return the fields that are set in requests to a name, in lower case, at a port."""
        found: dict[str, tuple[str, str]] = {}
        for each in self.headers:
            if each.matches_name(name) and port in each.ports:
                found |= {field.lower(): (field, text) for field, text in each.fields}
        return list(found.values())

    def allows_name(self, name: str, port: int) -> bool:
        """Whether a name, in lower case, may be connected to at a port."""
        if self.denial_of_name(name, port) is not None:
            return False
        if self.mode == "open":
            return True
        return any(rule.matches_name(name) and port in rule.ports for rule in self.rules)

    def denial_of_name(self, name: str, port: int | None) -> DeniedDestination | None:
        """Return what denies a name, in lower case, at a port; at None: at every port."""
        for each in self.denied:
            if each.matches_name(name) and each.denies_port(port):
                return each
        return None

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON, which `of` reads."""
        found: dict[str, Any] = {"mode": self.mode}
        if self.mode == "allow":
            found["allow"] = [rule.as_json() for rule in self.rules]
        if self.denied:
            found["deny"] = [each.as_json() for each in self.denied]
        if not self.is_none:
            found |= {name: getattr(self, name) for name in _BOUNDS}
        if self.packages is not None:
            found["packages"] = self.packages.plain()
        if self.headers:
            found["headers"] = [each.as_json() for each in self.headers]
        return found

    def __str__(self) -> str:
        """Return the policy in a few words."""
        words: str = self.mode
        if self.mode == "allow":
            words += f" {', '.join(map(str, self.rules)) or 'nothing'}"
        if self.denied:
            words += f" but not {', '.join(map(str, self.denied))}"
        if self.headers:
            words += f" with {', '.join(map(str, self.headers))}"
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
    from cellwall.model.network_rule import denied_of, headers_of, rules_of

    known = ("mode", "allow", "deny", "packages", "headers", *_BOUNDS)
    unknown = sorted(set(map(str, value)) - set(known))
    if unknown:
        raise _wrong(f"unknown name {unknown[0]!r:.60}", f"names: {', '.join(known)}")
    allowed = value.get("allow")
    mode = value.get("mode", "none" if allowed is None else "allow")
    if mode == "allow" and allowed is None:
        allowed = ()  # an absent list allows as little as an empty one
    rules = () if allowed is None else rules_of(allowed)
    denied = () if value.get("deny") is None else denied_of(value["deny"])
    numbers = {name: value[name] for name in _BOUNDS if value.get(name) is not None}
    packages = None if value.get("packages") is None else _packages(value["packages"])
    headers = () if value.get("headers") is None else headers_of(value["headers"])
    made = NetworkPolicy(mode, rules, denied, packages=packages, headers=headers)
    return replace(made, **numbers)
