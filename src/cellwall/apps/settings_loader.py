"""Settings loader: a TOML file, then `CELLWALL_*`, then flags; the later one takes precedence.

The only place that reads the server's settings; their meaning is in `server.core.settings` and
`engine.policy.settings`. The invariant: an unknown name is an error, never silently ignored, and
no key is ever echoed.

    [server]  fields of ServerSettings      [most]  ceilings of limits
    [engine]  fields of EngineSettings      [limits]  limits of a request that names none
    [[keys]]  sha256, tenant, scope, expires_at
    [tiers.NAME]  quotas of the tenants of that tier; `default` is that of all other tenants
    [tenants]     TENANT = "TIER"
    [doors.NAME]  a foreign protocol that is answered: port, tenant, and options of its own
    [trust.WORD]  level and network of `untrusted`, `semi` or `trusted`
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from cellwall.engine.policy.levels import Trust
from cellwall.engine.policy.settings import EngineSettings
from cellwall.engine.scheduling.quotas import DEFAULT_TIER, Quotas
from cellwall.model.errors import UsageError
from cellwall.server.auth.keys import KeyRecord, check_key, digest_of
from cellwall.server.core.door_settings import DoorSettings
from cellwall.server.core.settings import ServerSettings

SECTIONS = frozenset(
    {"server", "engine", "limits", "most", "keys", "tiers", "tenants", "trust", "doors"}
    | {"node", "gateway"}  # read by `apps.cluster.settings`
)
T = TypeVar("T")
_NOT_ENGINE = frozenset({"limits", "trust", "node"})
_NOT_DOOR = frozenset({"options"})
_NO_NAMES: frozenset[str] = frozenset()
_NOT_SERVER = frozenset({"most", "tiers", "tenants", "doors"})


@dataclass(frozen=True, slots=True)
class Loaded:
    """All settings for `apps.serve`."""

    server: ServerSettings
    engine: EngineSettings
    keys: tuple[KeyRecord, ...]
    """Keys of the operator: from the file and from `CELLWALL_API_KEY`."""


def load(
    path: Path | None, flags: Mapping[str, Any], environ: Mapping[str, str] | None = None
) -> Loaded:
    """Read all settings; `UsageError` names an invalid one."""
    source = os.environ if environ is None else environ
    document = _document(path)
    server = ServerSettings()
    server = replace(server, most=server.most.with_changes(_section(document, "most")))
    server = _changed(server, _section(document, "server"), _NOT_SERVER, "server")
    server = _changed(server, _from_environment(source), _NOT_SERVER, "environment")
    given = {name: value for name, value in flags.items() if value is not None}
    server = _changed(server, given, _NOT_SERVER, "flags")
    server = replace(
        server, tiers=_tiers(document), tenants=_tenants(document), doors=_doors(document)
    )
    engine = EngineSettings.from_environment(source)
    engine = replace(engine, limits=engine.limits.with_changes(_section(document, "limits")))
    engine = replace(engine, trust=_trust(document, engine.trust))
    engine = _changed(engine, _section(document, "engine"), _NOT_ENGINE, "engine")
    return Loaded(server, engine, _keys(document, source))


def _document(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"settings: read {path}: {error.strerror}", remedy="name a readable file"
        ) from None
    except ValueError as error:
        raise UsageError(f"settings: {path}: {error}", remedy="write it as TOML") from None
    unknown = sorted(set(document) - SECTIONS)
    if unknown:
        raise UsageError(
            f"settings: {path}: unknown section {unknown[0]!r}",
            remedy=f"known sections: {', '.join(sorted(SECTIONS))}",
        )
    return document


def _section(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = document.get(name, {})
    if not isinstance(section, dict):
        raise UsageError(f"settings: {name} is not a section", remedy=f"write [{name}]")
    return section


def read_section(path: Path, name: str, kind: type[T]) -> T:
    """Return a section of a file as a dataclass. Raises UsageError as `load`."""
    return kind(**_values(kind, _section(_document(path), name), _NO_NAMES, name))


def _changed(settings: Any, changes: Mapping[str, Any], hidden: frozenset[str], where: str) -> Any:  # noqa: ANN401 - either dataclass
    return replace(settings, **_values(settings, changes, hidden, where))


def _values(
    kind: Any,  # noqa: ANN401 - a dataclass, or an object of one
    changes: Mapping[str, Any],
    hidden: frozenset[str],
    where: str,
) -> dict[str, Any]:
    """Return the values of known names, each of its field's type. Raises UsageError."""
    known = {each.name: each for each in fields(kind) if each.name not in hidden}
    values = {}
    for name, value in changes.items():
        if name not in known:
            raise UsageError(
                f"settings: {where}: unknown name {name!r}",
                remedy=f"known names: {', '.join(known)}",
            )
        values[name] = _fitting(name, value, str(known[name].type))
    return values


def _fitting(name: str, value: Any, kind: str) -> Any:  # noqa: ANN401 - of TOML
    if kind == "object":
        return value  # the settings themselves say what is wrong with it
    if kind.startswith("tuple[Mapping"):
        if not isinstance(value, (list, tuple)) or not all(isinstance(v, dict) for v in value):
            raise UsageError(f"settings: {name} is not a list of tables", remedy="write [{…}, {…}]")
        return tuple(value)
    if kind.startswith("tuple"):
        if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in value):
            raise UsageError(f"settings: {name} is not a list of texts", remedy='write ["a", "b"]')
        return tuple(value)
    kind = kind.removesuffix(" | None")
    if kind == "float" and type(value) is int:
        return float(value)
    wanted = {"int": int, "float": float, "bool": bool}.get(kind, str)
    if type(value) is not wanted:
        raise UsageError(
            f"settings: {name} = {value!r} is not {kind}",
            remedy="run `cellwall settings`, or see docs/settings.md",
        )
    return value


def _tiers(document: Mapping[str, Any]) -> dict[str, Quotas]:
    return {
        name: _changed(Quotas(), _section(_section(document, "tiers"), name), _NO_NAMES, where)
        for name in _section(document, "tiers")
        for where in (f"tiers.{name}",)
    }


def _tenants(document: Mapping[str, Any]) -> dict[str, str]:
    tiers = {DEFAULT_TIER, *_section(document, "tiers")}
    tenants = _section(document, "tenants")
    for tenant, tier in tenants.items():
        if tier not in tiers:
            raise UsageError(
                f"settings: tenants: {tenant} = {tier!r}: there is no such tier",
                remedy=f"known tiers: {', '.join(sorted(tiers))}; make one with [tiers.NAME]",
            )
    return tenants


def _doors(document: Mapping[str, Any]) -> dict[str, DoorSettings]:
    """Return each door's settings; a name that all doors do not have is an option of that one."""
    common = {each.name for each in fields(DoorSettings)} - {"options"}
    found = {}
    for name in _section(document, "doors"):
        given = _section(_section(document, "doors"), name)
        shared = {key: value for key, value in given.items() if key in common}
        options = {key: value for key, value in given.items() if key not in common}
        door = _changed(DoorSettings(options=options), shared, _NOT_DOOR, f"doors.{name}")
        found[name] = door
    return found


def _trust(document: Mapping[str, Any], known: Mapping[str, Trust]) -> dict[str, Trust]:
    section = _section(document, "trust")
    return {
        **known,
        **{
            word: _changed(known.get(word, Trust()), _section(section, word), _NO_NAMES, where)
            for word in section
            for where in (f"trust.{word}",)
        },
    }


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of the server's settings that `CELLWALL_<FIELD>` variables set."""
    found: dict[str, Any] = {}
    for each in fields(ServerSettings):
        text = environ.get(f"CELLWALL_{each.name.upper()}")
        if text is not None and each.name not in _NOT_SERVER:
            found[each.name] = _read(each.name, text, str(each.type))
    return found


def _read(name: str, text: str, kind: str) -> Any:  # noqa: ANN401 - of a setting
    kind = kind.removesuffix(" | None")
    try:
        if kind == "int":
            return int(text)
        if kind == "float":
            return float(text)
    except ValueError:
        raise UsageError(
            f"settings: CELLWALL_{name.upper()}={text!r} is not a number", remedy="give a number"
        ) from None
    if kind == "bool":
        return text == "1"
    if kind.startswith("tuple"):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text


def _keys(document: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[KeyRecord, ...]:
    records = []
    for entry in document.get("keys", []):
        unknown = sorted(set(entry) - {"sha256", "tenant", "scope", "expires_at"})
        if unknown or "sha256" not in entry:
            raise UsageError(
                f"settings: keys: {unknown[0]!r} is not known"
                if unknown
                else "settings: keys: one has no sha256",
                remedy="give sha256, and tenant, scope, expires_at if wanted",
            )
        records.append(
            KeyRecord(
                entry["sha256"],
                entry.get("tenant", "default"),
                entry.get("scope", "run"),
                entry.get("expires_at"),
            )
        )
    key = environ.get("CELLWALL_API_KEY")
    if key:
        records.append(KeyRecord(digest_of(check_key(key)), scope="admin"))
    return tuple(records)
