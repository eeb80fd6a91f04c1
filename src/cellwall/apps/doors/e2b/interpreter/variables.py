"""Variables of one execution: set before it, and what they were again afterwards.

A context keeps its environment, and the server's executions have none of their own, so cells of the
context's language set it. Languages without such a cell are refused.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from cellwall.apps.doors.e2b.interpreter.contexts import Context
    from cellwall.client.sandbox import AsyncSandbox

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_MOST, _MOST_BYTES = 256, 131_072
_SET: Mapping[str, tuple[str, str]] = {
    "python": (
        "__import__('builtins').__dict__['_cw_env'] = (lambda os, new: [{{k: os.environ.get(k)"
        " for k in new}}, os.environ.update(new)][0])(__import__('os'), {new})\n",
        "(lambda os, old: [os.environ.pop(k, None) if v is None else"
        " os.environ.__setitem__(k, v) for k, v in old.items()] and None)"
        "(__import__('os'), __import__('builtins').__dict__.pop('_cw_env'))\n",
    ),
    "javascript": (
        "globalThis._cw_env = Object.fromEntries(Object.keys({new}).map(k => [k, process.env[k]]));"
        " Object.assign(process.env, {new}); undefined",
        "for (const [k, v] of Object.entries(globalThis._cw_env)) {{ if (v === undefined)"
        " delete process.env[k]; else process.env[k] = v; }} delete globalThis._cw_env; undefined",
    ),
}
"""Cells of each language that set variables, and that set them back."""


def of(given: object) -> dict[str, str]:
    """Return the variables of a request. Raises UsageError."""
    if given is None:
        return {}
    if not isinstance(given, dict) or len(given) > _MOST:
        raise UsageError("env_vars: not an object of variables")
    for name, value in given.items():
        if not _NAME.fullmatch(name) or not isinstance(value, str) or "\0" in value:
            raise UsageError(f"env_vars: {name[:40]!r} is no variable with a text")
    if sum(map(len, given.values())) > _MOST_BYTES:
        raise UsageError("env_vars: more than 128 KiB")
    return dict(given)


@contextlib.asynccontextmanager
async def given(
    sandbox: AsyncSandbox, context: Context, wanted: Mapping[str, str]
) -> AsyncIterator[None]:
    """Have variables in a context during the block, with its turn held. Raises UsageError."""
    if not wanted:
        yield
        return
    cells = _SET.get(context.language)
    if cells is None:
        raise UsageError(
            f"env_vars: cells of {context.language} cannot have variables of their own"
        )
    begin, end = cells
    new = json.dumps(wanted, ensure_ascii=False)  # JSON's pairs of escapes are no text in Python
    try:
        made = await sandbox.run(begin.format(new=new), context.language, context.name)
        if not made.ok:
            raise UsageError("env_vars: they could not be set")
        yield
    finally:
        await sandbox.run(end.format(), context.language, context.name)
