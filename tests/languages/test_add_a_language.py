"""What `docs/add-a-language.md` says is enough is enough: its entry runs, line for line."""

from __future__ import annotations

import asyncio
import re

import pytest

from cellwall.engine.engine import Engine
from cellwall.languages import registry
from cellwall.languages.entries.language import Language
from cellwall.model.outcome import Verdict
from kit.places import ROOT

PAGE = ROOT / "docs" / "add-a-language.md"


def entry() -> Language:
    found = re.search(r"```python entry\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    names: dict[str, Language] = {}
    exec(re.sub(r"^   ", "", found[1], flags=re.MULTILINE), names)
    return names["LANGUAGE"]


def test_entry_of_the_page_is_all_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    language = entry()
    monkeypatch.setitem(registry._BY_NAME, language.name, language)

    async def work() -> None:
        engine = Engine()
        try:
            hello = await engine.run(language.hello, language="sed", stdin="one line\n")
            assert (hello.stdout, hello.verdict) == ("hello\n", Verdict.OK), hello.stderr
            failed = await engine.run(language.failing.code, language="sed", stdin="x\n")
            assert failed.verdict is Verdict.EXCEPTION, failed.stderr
            assert failed.error is not None
            assert (failed.error.name, failed.error.line) == ("Error", 2)
        finally:
            await engine.aclose()

    asyncio.run(work())
