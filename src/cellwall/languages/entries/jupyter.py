"""Any installed Jupyter kernel as a language, called `jupyter:NAME` after its kernelspec.

Not in the list: which kernels there are is known inside a template, not here.
"""

from __future__ import annotations

import re

from cellwall.languages.entries.language import Language

_NAME = re.compile(r"jupyter:([A-Za-z0-9._-]{1,64})")


def find(name: str) -> Language | None:
    """Return the language of a name like `jupyter:ir`; None for other names."""
    matched = _NAME.fullmatch(name)
    if matched is None:
        return None
    return Language(
        name=name,
        aliases=(),
        extensions=(),
        file_name="main",
        run=(),
        context=name,
        template="data",
        version=("jupyter", "--version"),
        install=f"use the template 'data' and a machine with the kernelspec {matched[1]}",
    )
