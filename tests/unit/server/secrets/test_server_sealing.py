"""Secrets at rest: what is sealed opens with its key, for its tenant, name and hosts, or not."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from cellwall.model.errors import UsageError
from cellwall.server.secrets.sealing import Seal

_VALUE = "the-value-at-rest"
_FACTS = {"hosts": ["a.test:443"], "places": ["header"]}


def test_a_sealed_value_is_bound_to_its_row() -> None:
    seal = Seal(bytes(32))
    sealed = seal.sealed(_VALUE, "moss", "KEY", _FACTS)
    assert _VALUE.encode() not in sealed
    assert sealed != seal.sealed(_VALUE, "moss", "KEY", _FACTS)
    assert seal.opened(sealed, "moss", "KEY", dict(reversed(_FACTS.items()))) == _VALUE
    for row in (
        (sealed, "fern", "KEY", _FACTS),
        (sealed, "moss", "OTHER", _FACTS),
        (sealed, "moss", "KEY", _FACTS | {"hosts": ["evil.test:443"]}),
        (sealed[:-1] + bytes([sealed[-1] ^ 1]), "moss", "KEY", _FACTS),
        (b"", "moss", "KEY", _FACTS),
    ):
        with pytest.raises(UsageError, match="cannot be opened"):
            seal.opened(*row)
    with pytest.raises(UsageError, match="written with another key"):
        Seal(b"k" * 32).opened(sealed, "moss", "KEY", _FACTS)


def test_a_key_is_made_once_and_for_us_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "secrets.key"
    with pytest.raises(UsageError, match="no such file"):
        Seal.of_file(path, may_make=False)
    sealed = Seal.of_file(path, may_make=True).sealed(_VALUE, "moss", "KEY", _FACTS)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Seal.of_file(path, may_make=True).opened(sealed, "moss", "KEY", _FACTS) == _VALUE


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secrets.key"
    Seal.of_file(path, may_make=True)
    path.chmod(mode)
    with pytest.raises(UsageError, match="others may read it") as caught:
        Seal.of_file(path, may_make=True)
    assert "chmod 600" in str(caught.value.remedy)


@pytest.mark.parametrize("text", ["", "abc", "zz" * 32, "00" * 31, "00" * 33, "\u00e9" * 64])
def test_a_file_without_a_key_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "secrets.key"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    with pytest.raises(UsageError, match="holds no key"):
        Seal.of_file(path, may_make=True)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    Seal.of_file(tmp_path / "other.key", may_make=True)
    (tmp_path / "secrets.key").symlink_to(tmp_path / "other.key")
    with pytest.raises(UsageError, match="symbolic links"):
        Seal.of_file(tmp_path / "secrets.key", may_make=True)
