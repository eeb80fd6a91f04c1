"""Certificate authority of one sandbox, by which its programs trust the egress proxy.

Made and held in the proxy's memory alone: the engine gets the certificate and never the key. Each
host that is opened gets a leaf certificate on its first connection; all have one key, made ahead.
The invariant: a leaf is for a host that the sandbox's policy allowed, never for a name that a
program said.
"""

from __future__ import annotations

import os
import ssl
import time
from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cellwall.model.errors import UsageError

_AUTHORITY_DAYS = 8
"""A sandbox lives for seven days at most (`limits.life_s`)."""
_LEAF_DAYS = 2
_LEAF_KEPT_S = 86_400.0
_EARLIER = timedelta(hours=1)
"""How much earlier a certificate is valid: a kernel of its own may have another clock."""
_MOST_LEAVES = 256


class Authority:
    """The authority of one sandbox."""

    def __init__(self, sandbox: str) -> None:
        """Make its key and certificate; `sandbox` is the id that its name has."""
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name(
            [x509.NameAttribute(NameOID.COMMON_NAME, f"cellwall sandbox {sandbox}"[:64])]
        )
        own = self._key.public_key()
        self._identifier = x509.SubjectKeyIdentifier.from_public_key(own)
        usage = _usage(signs_certificates=True)
        made = (
            _builder(self._name, self._name, own, _AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(self._identifier, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = made.public_bytes(serialization.Encoding.PEM).decode("ascii")
        """Its certificate, as PEM."""
        self._leaves: OrderedDict[str, tuple[float, ssl.SSLContext]] = OrderedDict()

    def context_for(self, host: str) -> ssl.SSLContext:
        """Return the server's end of TLS for a name or a literal address."""
        now = time.monotonic()
        made_at, context = self._leaves.get(host, (0.0, None))
        if context is None or now - made_at > _LEAF_KEPT_S:
            context = _server_context(self._leaf(host))
            self._leaves[host] = (now, context)
            if len(self._leaves) > _MOST_LEAVES:
                self._leaves.popitem(last=False)
        self._leaves.move_to_end(host)
        return context

    def _leaf(self, host: str) -> bytes:
        named: x509.GeneralName
        try:
            named = x509.IPAddress(ip_address(host))
        except ValueError:
            named = x509.DNSName(host)
        own = _leaf_key().public_key()
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
        by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._identifier)
        made = (
            _builder(subject, self._name, own, _LEAF_DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.SubjectAlternativeName([named]), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(own), critical=False)
            .add_extension(by, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM)


@lru_cache(maxsize=1)
def _leaf_key() -> ec.EllipticCurvePrivateKey:
    """Return the key of every leaf of this process."""
    return ec.generate_private_key(ec.SECP256R1())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _server_context(leaf: bytes) -> ssl.SSLContext:
    """Return a server's context with a leaf; OpenSSL reads it from memory files of this process."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    key = _leaf_key().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(file, leaf + key)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    return context


def context_to_servers(authorities: str) -> ssl.SSLContext:
    """Return the client's end of TLS, which verifies a server by this machine's authorities.

    `authorities` are further ones of the operator's, as PEM; empty: none. Raises `UsageError`.
    """
    context = ssl.create_default_context()
    if authorities:
        try:
            context.load_verify_locations(cadata=authorities)
        except ssl.SSLError as error:
            raise UsageError(
                f"network: the operator's file of certificates cannot be read: {error.reason}",
                remedy="correct the file that CELLWALL_NETWORK_AUTHORITIES names; it has to be PEM",
            ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    return context
