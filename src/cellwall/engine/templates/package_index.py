"""Package index: the user's pip and uv settings, as environment variables for uv.

Called by `build` and, as a plain file with the bare interpreter, by `scripts/bootstrap`; so it
imports only the standard library. It is not a configuration of cellwall's own and names no index:
uv knows the public one. The user's settings for uv itself always take precedence.
"""

from __future__ import annotations

import configparser
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

_UV_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL")

_TRANSLATED = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
}
_UV_TRUST_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "UV_SYSTEM_CERTS", "UV_NATIVE_TLS")
_SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Arch, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # SUSE
)
"""Files of the certificate authorities that an administrator added: pip trusts them, uv only its
built-in ones."""


def uv_variables(
    environ: Mapping[str, str], bundles: Sequence[str] = _SYSTEM_BUNDLES
) -> dict[str, str]:
    """Return what to add to `environ` so that uv installs from the index that pip would use.

    uv trusts the first of `bundles` that exists (paths of PEM files), unless the environment
    already names its certificates.
    """
    settings = _pip_files(environ) | _pip_variables(environ)
    found = {
        _TRANSLATED[name]: ("," if name == "find-links" else " ").join(value.split())
        for name, value in settings.items()
        if name in _TRANSLATED and value.strip()
    }
    if any(name in environ for name in _UV_INDEX_VARIABLES):
        found = {k: v for k, v in found.items() if k not in _UV_INDEX_VARIABLES}
    if "UV_INDEX" in found:
        # pip takes the best version over all indexes; uv by default only the first index that knows
        # the name, which hides pinned versions when the extra index is a partial mirror.
        found["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    if not any(name in environ for name in _UV_TRUST_VARIABLES):
        system = next((path for path in bundles if os.path.isfile(path)), None)
        found |= {"SSL_CERT_FILE": system} if system and "SSL_CERT_FILE" not in found else {}
    return {name: value for name, value in found.items() if name not in environ}


def _pip_variables(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: environ[variable]
        for name in _TRANSLATED
        if (variable := "PIP_" + name.upper().replace("-", "_")) in environ
    }


def _pip_files(environ: Mapping[str, str]) -> dict[str, str]:
    """Merge pip's configuration files, later ones taking precedence, as pip does."""
    home = Path(environ.get("HOME") or "/nonexistent")
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    paths = [Path("/etc/pip.conf"), home / ".pip/pip.conf", config / "pip/pip.conf"]
    if "PIP_CONFIG_FILE" in environ:
        # pip reads no other file when this names the null device.
        if environ["PIP_CONFIG_FILE"] == os.devnull:
            return {}
        paths.append(Path(environ["PIP_CONFIG_FILE"]))
    merged: dict[str, str] = {}
    for path in paths:
        merged |= _read(path)
    return merged


def _read(path: Path) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, configparser.Error):
        # Absent, private or broken: pip itself reports that to its user.
        return {}
    sections = [parser[name] for name in ("global", "install") if name in parser]
    return {name: value for section in sections for name, value in section.items()}


if __name__ == "__main__":
    for variable, setting in uv_variables(os.environ).items():
        print(f"export {variable}={shlex.quote(setting)}")  # noqa: T201 - for the shell's eval
