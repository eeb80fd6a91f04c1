"""The certificates of an opened connection are strict ones, for one host and one sandbox."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from cellwall.egress.tls.authority import Authority

_STRICT = getattr(ssl, "VERIFY_X509_STRICT", 0)


def _handshake(authority: Authority, host: str, name: str, trusted: str) -> ssl.SSLObject:
    """Agree in memory; return the client's end."""
    trusting = ssl.create_default_context(cadata=trusted)
    trusting.verify_flags |= _STRICT
    one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(one, other, server_hostname=name)
    server = authority.context_for(host).wrap_bio(other, one, server_side=True)
    for _ in range(4):
        for each in (client, server):
            try:
                each.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return client


@pytest.mark.parametrize("host", ["a.test", "192.0.2.1", "2001:db8::1", "x" * 63 + ".a.test"])
def test_a_leaf_is_taken_for_its_host_by_who_trusts_the_authority(host: str) -> None:
    authority = Authority("sandbox")
    client = _handshake(authority, host, host, authority.certificate)
    assert client.version() == "TLSv1.3"
    assert authority.context_for(host) is authority.context_for(host)


def test_a_leaf_is_not_taken_for_another_host_or_under_another_authority() -> None:
    authority = Authority("sandbox")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        _handshake(authority, "a.test", "b.test", authority.certificate)
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(authority, "a.test", "a.test", Authority("sandbox").certificate)


def test_an_authority_is_short_lived_and_has_no_authority_below_it() -> None:
    found = x509.load_pem_x509_certificate(Authority("a" * 80).certificate.encode())
    basic = found.extensions.get_extension_for_class(x509.BasicConstraints)
    assert basic.critical
    assert (basic.value.ca, basic.value.path_length) == (True, 0)
    assert found.not_valid_after_utc - datetime.now(UTC) < timedelta(days=9)
