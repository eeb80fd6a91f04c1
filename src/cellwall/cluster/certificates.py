"""The cluster's own authority, the certificates that it gives, and the contexts that believe it.

Used by `cellwall cluster` to make them, by nodes and gateways to use them. The invariant: what a
certificate is for is in it, and TLS holds it: a node's serves and never calls, a gateway's calls
and never serves; so a stolen key of one cannot play the other.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cellwall.model.errors import UsageError

_AUTHORITY = "authority"
ANY_ADDRESS = "node.cellwall.invalid"
"""The name in the certificates of nodes whose addresses are not known when these are made."""
_YEARS = 10
_DAYS = 365
_BACK = datetime.timedelta(hours=1)
"""Certificates begin so long ago: the clocks of machines differ."""


class Files(NamedTuple):
    """The PEM files of one certificate."""

    certificate: Path
    key: Path


class Facts(NamedTuple):
    """What a certificate says of itself."""

    begins: datetime.datetime
    ends: datetime.datetime
    uses: tuple[str, ...]
    """What it is for: `serving`, `calling`; neither: it is an authority's."""


def facts_of(pem: bytes) -> Facts:
    """Return what a certificate says. Raises UsageError if it is none."""
    try:
        found = x509.load_pem_x509_certificate(pem)
        usages = [each.value for each in found.extensions]
    except ValueError as error:
        raise UsageError(
            f"cluster: not a certificate in PEM: {error}",
            remedy="name a file of `cellwall cluster cert`",
        ) from None
    words = {ExtendedKeyUsageOID.SERVER_AUTH: "serving", ExtendedKeyUsageOID.CLIENT_AUTH: "calling"}
    listed = [
        each for usage in usages if isinstance(usage, x509.ExtendedKeyUsage) for each in usage
    ]
    uses = tuple(words[each] for each in listed if each in words)
    return Facts(found.not_valid_before_utc, found.not_valid_after_utc, uses)


def files_of(folder: Path, name: str) -> Files:
    """Return where the certificate and the key called `name` are."""
    return Files(folder / f"{name}.pem", folder / f"{name}.key")


def make_authority(folder: Path) -> Files:
    """Make the cluster's authority in a new folder that its owner alone may read.

    Raises UsageError if there is one: a second would void every certificate of the first.
    """
    files = files_of(folder, _AUTHORITY)
    if files.key.exists():
        raise UsageError(
            f"cluster init: {folder} has an authority", remedy="name another folder, or keep it"
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = _named("cellwall cluster")
    now = _now()
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACK)
        .not_valid_after(now + datetime.timedelta(days=_YEARS * _DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(files, key, made)
    return files


def issue_node(folder: Path, name: str, addresses: tuple[str, ...], days: int = _DAYS) -> Files:
    """Have the authority in `folder` give a node a certificate for its addresses.

    `addresses`: host names and IP addresses at which gateways reach it; ANY_ADDRESS for one that
    gateways find at any. Raises UsageError.
    """
    if not addresses:
        raise UsageError(
            f"cluster cert: {name}: a node needs the addresses it is reached at",
            remedy="give --address, once for each, or --any-address",
        )
    names = x509.SubjectAlternativeName([_address(each) for each in addresses])
    return _issue(folder, name, ExtendedKeyUsageOID.SERVER_AUTH, names, days)


def issue_gateway(folder: Path, name: str, days: int = _DAYS) -> Files:
    """Have the authority in `folder` give a gateway a certificate. Raises UsageError."""
    names = x509.SubjectAlternativeName([x509.DNSName(f"{name}.gateway.invalid")])
    return _issue(folder, name, ExtendedKeyUsageOID.CLIENT_AUTH, names, days)


def _issue(
    folder: Path,
    name: str,
    purpose: x509.ObjectIdentifier,
    names: x509.SubjectAlternativeName,
    days: int,
) -> Files:
    if not name.replace("-", "").isalnum() or not name.isascii() or name == _AUTHORITY:
        raise UsageError(
            f"cluster cert: {name[:40]!r} is not a name for a certificate",
            remedy="use letters, digits and hyphens",
        )
    issuer, issuer_key = _authority(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    now = _now()
    made = (
        x509.CertificateBuilder()
        .subject_name(_named(name))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACK)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=True)
        .add_extension(names, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
        .sign(issuer_key, hashes.SHA256())
    )
    files = files_of(folder, name)
    _write(files, key, made)
    return files


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    files = files_of(folder, _AUTHORITY)
    try:
        issuer = x509.load_pem_x509_certificate(files.certificate.read_bytes())
        key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cluster cert: read the authority in {folder}: {error}",
            remedy="make one with `cellwall cluster init`",
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UsageError(
            f"cluster cert: {files.key} is not a key of `cellwall cluster init`",
            remedy="name the folder that it made",
        )
    return issuer, key


def _address(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _write(files: Files, key: ec.EllipticCurvePrivateKey, made: x509.Certificate) -> None:
    """Write both files; the key is its owner's alone from the start."""
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(files.key, flags, 0o600), "wb") as file:
        file.write(text)
    files.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))


# -- contexts --------------------------------------------------------------------------------------


def node_context(authority: Path, files: Files) -> ssl.SSLContext:
    """Return the context of a node's listener, which serves gateways of that authority alone."""
    context = _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), authority, files)
    # No gateway resumes a session, and OpenSSL keeps 16 KiB for each client that was given tickets.
    context.num_tickets = 0
    return context


def gateway_context(authority: Path, files: Files) -> ssl.SSLContext:
    """Return the context with which a gateway calls nodes of that authority alone."""
    return _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), authority, files)


def _loaded(context: ssl.SSLContext, authority: Path, files: Files) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    try:
        context.load_verify_locations(authority)
        context.load_cert_chain(files.certificate, files.key)
    except OSError as error:  # ssl.SSLError is one
        raise UsageError(
            f"cluster: certificate {files.certificate}, authority {authority}: "
            f"{error.strerror or error}",
            remedy="make them with `cellwall cluster cert`",
        ) from None
    return context
