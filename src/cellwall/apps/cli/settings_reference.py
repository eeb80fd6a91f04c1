"""Every setting there is, read from the dataclasses that hold them and their docstrings.

Not the loader (`settings_loader`) and not a page: docs/settings.md and `cellwall settings` are
made from this. The invariant: nothing is listed by hand that the dataclasses know, so a new
field, or a new section of them, appears here by itself.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from itertools import pairwise
from typing import Any, get_args, get_origin, get_type_hints

from cellwall.apps.cluster.settings import NodeSettings
from cellwall.cluster.gateway.settings import GatewaySettings
from cellwall.engine.policy.settings import EngineSettings
from cellwall.server.auth.keys import KeyRecord
from cellwall.server.core.settings import ServerSettings

_UNITS = {
    "_s": "seconds",
    "_ms": "milliseconds",
    "_mb": "MiB",
    "_kb": "KiB",
    "_bytes": "bytes",
    "_per_min": "per minute",
    "cpus": "processors",
}
_KINDS = {int: "whole number", float: "number", str: "text", bool: "true or false"}
_ENGINE_VARIABLES = {
    "allow_process": "CELLWALL_ALLOW_PROCESS",
    "pool_max": "CELLWALL_POOL_SIZE",
    "least_isolation": "CELLWALL_LEAST_ISOLATION",
    "default_isolation": "CELLWALL_DEFAULT_ISOLATION",
    "runtimes": "CELLWALL_RUNTIMES",
    "network": "CELLWALL_NETWORK",
    "network_addresses": "CELLWALL_NETWORK_ADDRESSES",
    "name_servers": "CELLWALL_NAME_SERVERS",
    "packages": "CELLWALL_PACKAGES",
    "package_registries": "CELLWALL_PACKAGE_REGISTRIES",
    "image_registries": "CELLWALL_IMAGE_REGISTRIES",
    "image_credentials": "CELLWALL_IMAGE_CREDENTIALS",
    "network_authorities": "CELLWALL_NETWORK_AUTHORITIES",
}
_OF_ONE = frozenset({("doors.NAME", "options"), ("engine", "node")})
"""Fields for settings that only one of several has, whose own page lists them; and those that have
their value from another setting."""
_IN_TOML = {"digest": "sha256"}
_OF_THE_MACHINE = {
    ("most", "memory_mb"): "half of the machine's, 512 to 16384",
    ("most", "cpus"): "all of the machine's",
}
"""Defaults that differ from machine to machine, in words."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, as an operator meets it."""

    section: str
    """Its place in TOML, as it is written there: `[server]`, `[tiers.NAME]`, `[[keys]]`."""
    name: str
    """Its name in TOML."""
    variable: str
    """The environment variable that sets it, or nothing."""
    flag: str
    """The flag of `cellwall serve` that sets it, or nothing."""
    kind: str
    """What a value looks like, with its unit."""
    default: str
    """The value that holds where none is given."""
    meaning: str
    """What its docstring says."""


def reference() -> list[Setting]:
    """Return every setting, sections together, in the order of their dataclasses."""
    found = [*_of("server", ServerSettings, ServerSettings())]
    found += _of("engine", EngineSettings, EngineSettings())
    found += _of("[keys]", KeyRecord, None)
    found += _of("node", NodeSettings, None)
    found += _of("gateway", GatewaySettings, None)
    return found


def section_names() -> dict[str, str]:
    """Return the name at the top of a TOML file to what its section is for, in words."""
    return {_top(each.section): _about(each.section) for each in reference()}


def _top(section: str) -> str:
    return section.strip("[]").partition(".")[0]


def _about(section: str) -> str:
    return _ABOUT.get(_top(section), "")


_ABOUT = {
    "server": "Where it listens, who may call, how much.",
    "engine": "How sandboxes are made and kept ready.",
    "most": "Ceilings: what a request may ask for at most.",
    "limits": "Limits of a request that names none.",
    "keys": "Keys the operator brings, by their digest.",
    "tiers": "Quotas of each tenant of a tier; `default` is the tier of everybody else.",
    "tenants": "Which tier a tenant has: its name, and the tier's.",
    "doors": "Foreign protocols that are answered, each below `/NAME`; an empty section opens one. "
    "docs/doors.md has their names, and further options of each.",
    "node": "What `cellwall node` needs beside those of a server; docs/cluster.md.",
    "gateway": "What `cellwall gateway` needs beside `[server]`, `[[keys]]`, `[tiers.NAME]` and "
    "`[tenants]`; docs/cluster.md.",
    "trust": "What `trust=untrusted`, `semi` and `trusted` stand for; NAME is one of the three. "
    "`trusted` has the level `process` by default. Also `CELLWALL_TRUST=untrusted=kernel,…`.",
}


def _of(section: str, kind: type, values: Any) -> Iterator[Setting]:  # noqa: ANN401 - a dataclass
    """Return a dataclass's settings; a field that is a dataclass is a section of its own."""
    hints, words = get_type_hints(kind), _docstrings(kind)
    later: list[Setting] = []
    for each in fields(kind):
        if (section, each.name) in _OF_ONE:
            continue
        hint = hints[each.name]
        value = _default(each) if values is None else getattr(values, each.name)
        if is_dataclass(hint) and isinstance(hint, type):
            later += _of(each.name, hint, value)
        elif get_origin(hint) in {dict, Mapping}:
            later += _free(each.name, hint, words.get(each.name, ""))
        else:
            yield _setting(section, each.name, hint, value, words.get(each.name, ""))
    yield from later


def _free(section: str, hint: Any, meaning: str) -> Iterator[Setting]:  # noqa: ANN401 - a type hint
    """Return the settings of a section whose names the operator chooses."""
    value = get_args(hint)[1]
    if is_dataclass(value) and isinstance(value, type):
        yield from _of(f"{section}.NAME", value, None)
    else:
        yield Setting(f"[{section}]", "NAME", "", "", _kind(section, value), "none", meaning)


def _setting(section: str, name: str, hint: Any, value: object, meaning: str) -> Setting:  # noqa: ANN401 - a type hint
    in_toml = _IN_TOML.get(name, name)
    default = _OF_THE_MACHINE.get((section, name), _shown(value))
    kind = _kind(name, hint)
    return Setting(
        f"[{section}]", in_toml, _variable(section, name), _flag(section, name), kind, default,
        " ".join(meaning.split()),
    )  # fmt: skip


def _variable(section: str, name: str) -> str:
    if section == "server":
        return f"CELLWALL_{name.upper()}"
    if (section, name) == ("gateway", "directory"):
        return "CELLWALL_DIRECTORY"
    return _ENGINE_VARIABLES.get(name, "") if section == "engine" else ""


def _flag(section: str, name: str) -> str:
    from cellwall.apps.cli.serve import serve

    taken = section == "server" and name in inspect.signature(serve).parameters
    return f"--{name.replace('_', '-')}" if taken else ""


def _kind(name: str, hint: Any) -> str:  # noqa: ANN401 - a type hint
    if hint is object:
        return "true, false or a table"
    if get_origin(hint) is tuple:
        return "list of texts" if get_args(hint)[0] is str else "list of tables"
    literal = [value for value in get_args(hint) if isinstance(value, str)]
    if literal:
        return " or ".join(f'"{value}"' for value in literal)
    plain = next((each for each in get_args(hint) if each is not type(None)), hint)
    kind = _KINDS.get(plain, "text")
    if kind.endswith("number"):
        unit = next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), "")
        return f"{kind}, {unit}" if unit else kind
    return kind


def _default(each: Field[Any]) -> object:
    if each.default is not MISSING:
        return each.default
    return each.default_factory() if each.default_factory is not MISSING else MISSING


def _shown(value: object) -> str:
    if value is MISSING:
        return "must be given"
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{part}"' for part in value) + "]"
    return (
        f'"{value}"' if isinstance(value, str) else f"{value:g}" if _is_short(value) else str(value)
    )


def _is_short(value: object) -> bool:
    return isinstance(value, float) and value.is_integer() and abs(value) < 1e6


@cache
def _docstrings(kind: type) -> dict[str, str]:
    """Return what stands below each field of a dataclass."""
    tree = ast.parse(inspect.getsource(sys.modules[kind.__module__]))
    made = next(
        n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == kind.__name__
    )
    return {
        ast.unparse(field.target): ast.literal_eval(words.value)
        for field, words in pairwise(made.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(words, ast.Expr)
        and isinstance(words.value, ast.Constant)
    }
