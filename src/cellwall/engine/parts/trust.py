"""Trust inside a sandbox whose TLS is opened: its proxy's certificate, where programs look for it.

A file with this machine's authorities and the sandbox's own, written by the guest before the
caller's first byte, and the variables that name it to programs. It may be changed inside: who does
that changes nothing but the sandbox's own view.
"""

from __future__ import annotations

import asyncio
import ssl
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from cellwall.model.errors import UsageError
from cellwall.runtimes.channel.replies import GuestRefused

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate

    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.model.network import NetworkPolicy
    from cellwall.model.secret import Secret

_FOLDER = "/tmp/.cellwall-authorities"  # noqa: S108 - a path inside
BUNDLE = f"{_FOLDER}/authorities.pem"
"""Path inside of the authorities, as PEM."""
_JAVA = f"{_FOLDER}/authorities.p12"
_WGET = f"{_FOLDER}/wgetrc"
"""Settings of Wget, which reads no variable that names authorities; wget(1), WGETRC."""
_BUNDLE_VARIABLES = (
    "SSL_CERT_FILE",  # OpenSSL, and what uses it: Python, Ruby, PHP, wget2; Go; httpx
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "npm_config_cafile",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
    "DENO_CERT",
)
_WORD = "changeit"
"""Password of the file for Java, which refuses one without."""


FindSecrets = Callable[[str, Sequence[str]], Awaitable[list["Secret"]]]
"""Function that returns secrets of a tenant by their names."""


async def no_stored_secrets(_tenant: str, names: Sequence[str]) -> list[Secret]:
    """Raise `UsageError`: an engine has no store of its own."""
    raise UsageError(
        f"secrets: {names[0]!r:.60} is a name, and nothing is stored here",
        remedy="give Secret(name, value, hosts=[…]), or ask a server that keeps secrets",
    )


@dataclass(frozen=True, slots=True)
class Egress:
    """The way out that a request asks for, checked."""

    policy: NetworkPolicy
    opened: tuple[Secret, ...] | None
    """Secrets for which TLS is opened; None: it never is."""

    @classmethod
    def of(cls, policy: NetworkPolicy, secrets: object, env: Mapping[str, str]) -> Egress:
        """Return it; `UsageError` for what are no secrets, or secrets that reach no host."""
        if secrets is None or secrets == ():
            return cls(policy, () if policy.opens_tls else None)
        from cellwall.model.secret import check_reachable, secrets_of  # most programs have none

        found = secrets_of(secrets)
        check_reachable(found, policy)
        check_names(found, env)
        return cls(policy, found if found or policy.opens_tls else None)

    @property
    def variables(self) -> dict[str, str]:
        """Variables inside, beside the caller's own, which take precedence."""
        return {} if self.opened is None else variables(self.opened)


def variables(secrets: Sequence[Secret]) -> dict[str, str]:
    """Return the variables of a sandbox whose TLS is opened: trust, and a placeholder each."""
    found = dict.fromkeys(_BUNDLE_VARIABLES, BUNDLE)
    found["JAVA_TOOL_OPTIONS"] = (
        f"-Djavax.net.ssl.trustStore={_JAVA} -Djavax.net.ssl.trustStoreType=PKCS12 "
        f"-Djavax.net.ssl.trustStorePassword={_WORD}"
    )
    found["WGETRC"] = _WGET
    return found | {secret.name: secret.placeholder for secret in secrets}


def check_names(secrets: Sequence[Secret], env: Mapping[str, str]) -> None:
    """Raise `UsageError` for a secret whose variable the caller's environment has already."""
    for secret in secrets:
        if secret.name in env:
            raise UsageError(
                f"secrets: {secret.name} is in env as well",
                remedy="leave it out of env: inside, the variable has the secret's placeholder",
            )


def check_without(policy: NetworkPolicy) -> None:
    """Raise `UsageError` if a policy needs trust in the proxy, for a sandbox without it.

    Rules for other ports than HTTPS are taken, as they may be for HTTP without TLS.
    """
    for rule in policy.rules:
        if rule.opens_tls and 443 in rule.ports:
            raise UsageError(
                f"network: {rule}: to see methods and paths on port 443, TLS is opened, and this "
                "sandbox was made without trust in its proxy's certificate",
                remedy='make the sandbox with such a rule, or say "ports": [80]',
            )
    for each in policy.headers:
        if each.opens_tls:
            raise UsageError(
                f"network: headers: {each}: to set them, TLS is opened, and this sandbox was made "
                "without trust in its proxy's certificate",
                remedy='make the sandbox with `headers`, or say "ports": [80]',
            )


async def install(live: ClaimedSandbox, certificate: str) -> None:
    """Write the files that the variables name. Raises what the guest's channel does.

    An image may have something in their place, or a `/tmp` that its user cannot write, which is a
    `UsageError`: a sandbox whose programs trust nothing is none that was asked for.
    """
    live.channel.most_held_bytes = -1  # only the first that a guest hears can be held
    bundle = _this_machines() + certificate.encode("ascii")
    java = await asyncio.to_thread(_java_store, certificate)
    wget = f"ca_certificate = {BUNDLE}\n".encode("ascii")
    for path, content in ((BUNDLE, bundle), (_JAVA, java), (_WGET, wget)):
        try:
            await live.channel.request(
                "file_write", content, path=path, append=False, parents=True, mode=0o644
            )
        except GuestRefused as refusal:
            raise UsageError(
                "secrets, rules that open TLS: the proxy's certificate has no place in the "
                f"sandbox: {refusal}",
                remedy=f"take an image whose user may write /tmp and that has no {_FOLDER}, and "
                "disk_mb of 1 or more; or ask for neither",
            ) from refusal


@lru_cache(maxsize=1)
def _this_machines() -> bytes:
    """Return this machine's authorities as PEM; empty if it has none in one file."""
    path = ssl.get_default_verify_paths().cafile
    for each in (path, "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"):
        if each and Path(each).is_file():
            return Path(each).read_bytes().rstrip() + b"\n"
    return b""


@lru_cache(maxsize=1)
def _java_entries() -> list[PKCS12Certificate]:
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate

    return [PKCS12Certificate(each, None) for each in _certificates(_this_machines())]


def _certificates(pem: bytes) -> list[x509.Certificate]:
    from cryptography import x509

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old authorities have serial numbers of other times
        return x509.load_pem_x509_certificates(pem) if pem else []


def _java_store(certificate: str) -> bytes:
    """Return the same authorities in the one form that Java reads, which takes some 10 ms."""
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption
    from cryptography.hazmat.primitives.serialization.pkcs12 import (
        PKCS12Certificate,
        serialize_java_truststore,
    )

    (own,) = _certificates(certificate.encode("ascii"))
    entries = [*_java_entries(), PKCS12Certificate(own, b"cellwall")]
    return serialize_java_truststore(entries, BestAvailableEncryption(_WORD.encode()))
