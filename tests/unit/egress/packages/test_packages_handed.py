"""What the broker is handed: each thing that is wrong with it is an error that says what to do."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cellwall.egress.packages.handed import cache_of, tls_of
from cellwall.egress.tls.authority import Authority, context_to_servers
from cellwall.model.errors import UsageError


@contextmanager
def opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def test_authorities_are_those_of_the_file(tmp_path: Path) -> None:
    """What stands between certificates may be in any language."""
    bundle = tmp_path / "bundle.pem"
    pem = Authority("one").certificate
    bundle.write_text(f"# Behörde für Prüfungen\n{pem}", encoding="utf-8")
    with opened(bundle) as fd:
        context = tls_of(fd)
        assert os.fstat(fd), "it stays the caller's"
    assert len(context.get_ca_certs()) == 1
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert tls_of(None).verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize("content", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA"])
def test_file_without_authorities_is_an_error_with_a_remedy(tmp_path: Path, content: str) -> None:
    """And not the same as none."""
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(content)
    with opened(bundle) as fd, pytest.raises(UsageError, match=str(bundle)) as caught:
        tls_of(fd)
    assert "SSL_CERT_FILE" in str(caught.value.remedy)
    with opened(tmp_path) as fd, pytest.raises(UsageError, match="cannot be read"):
        tls_of(fd)


def test_operators_certificates_are_an_error_with_a_remedy_too() -> None:
    with pytest.raises(UsageError, match="operator's file") as caught:
        context_to_servers("no certificate")
    assert "CELLWALL_NETWORK_AUTHORITIES" in str(caught.value.remedy)


def _file_in_place(folder: Path) -> None:
    (folder / "parts").write_text("")


def _open_to_all(folder: Path) -> None:
    folder.chmod(0o777)


def _full_link(folder: Path) -> None:
    (folder / "parts").symlink_to(folder / "nowhere")


@pytest.mark.parametrize("spoil", [_file_in_place, _open_to_all, _full_link])
def test_folder_that_is_no_cache_is_an_error_with_its_own_path(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    with opened(folder, os.O_PATH | os.O_DIRECTORY) as fd:
        assert cache_of(fd, most_bytes=1).size == 0
        os.rmdir(folder / "parts")
        spoil(folder)
        with pytest.raises(UsageError, match=f"the folder {folder} ") as caught:
            cache_of(fd, most_bytes=1)
    assert "/proc/" not in str(caught.value)
    assert "remove it" in str(caught.value.remedy)
