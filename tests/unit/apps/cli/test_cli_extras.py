"""What is said where an extra is not installed: all that is missing, before anything else."""

from __future__ import annotations

import importlib.metadata
import re

import pytest

from cellwall.apps.cli.console import extras
from cellwall.model.errors import HostUnsupported

_OTHER_NAMES = {"prometheus_client": "prometheus-client", "python_multipart": "python-multipart"}


def test_what_is_looked_for_is_what_the_extra_brings() -> None:
    wanted = importlib.metadata.requires("cellwall") or []
    brought = {
        re.split(r"[^A-Za-z0-9_.-]", each)[0]
        for each in wanted
        if re.search(r"""extra == ["']server["']""", each)
    }
    assert {_OTHER_NAMES.get(name, name) for name in extras.SERVER} == brought


def test_what_is_installed_is_found() -> None:
    extras.check_server()


def test_what_is_missing_is_named_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "SERVER", ("h11", "is_not_there", "nor_this"))
    with pytest.raises(HostUnsupported, match="not installed: is_not_there, nor_this") as caught:
        extras.check_server()
    assert caught.value.remedy == "run: pip install 'cellwall[server]'"
