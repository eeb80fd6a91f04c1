"""Variables of one execution: set before it, and what they were again afterwards.

A context keeps its environment, and the server's executions have none of their own, so cells of the
context's language set it. Languages without such a cell are refused.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from cellwall.apps.doors.e2b.interpreter.contexts import Context
    from cellwall.client.sandbox import AsyncSandbox

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_MOST, _MOST_BYTES = 256, 131_072


def _as_object(new: Mapping[str, str]) -> str:
    return json.dumps(new, ensure_ascii=False)  # JSON's pairs of escapes are no text in Python


def _as_assignments(new: Mapping[str, str]) -> str:
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in new.items())


def _as_vector(new: Mapping[str, str]) -> str:
    return f"c({', '.join(f'{_quoted(name)} = {_quoted(new[name])}' for name in new)})"


def _as_pairs(new: Mapping[str, str]) -> str:
    return ", ".join(f"{{{_quoted(name)}, {_quoted(new[name])}}}" for name in new)


def _quoted(text: str) -> str:
    """Return a literal of R and Java, whose escapes are JSON's."""
    return json.dumps(text, ensure_ascii=False)


class _Cells(NamedTuple):
    """How a language sets variables: `{new}` stands for them, `{names}` for their names."""

    form: Callable[[Mapping[str, str]], str]
    begin: str
    end: str


_JAVASCRIPT = _Cells(
    _as_object,
    "globalThis._cw_env = Object.fromEntries(Object.keys({new}).map(k => [k, process.env[k]]));"
    " Object.assign(process.env, {new}); undefined",
    "for (const [k, v] of Object.entries(globalThis._cw_env)) {{ if (v === undefined)"
    " delete process.env[k]; else process.env[k] = v; }} delete globalThis._cw_env; undefined",
)
_SET: Mapping[str, _Cells] = {
    "python": _Cells(
        _as_object,
        "__import__('builtins').__dict__['_cw_env'] = (lambda os, new: [{{k: os.environ.get(k)"
        " for k in new}}, os.environ.update(new)][0])(__import__('os'), {new})\n",
        "(lambda os, old: [os.environ.pop(k, None) if v is None else"
        " os.environ.__setitem__(k, v) for k, v in old.items()] and None)"
        "(__import__('os'), __import__('builtins').__dict__.pop('_cw_env'))\n",
    ),
    "javascript": _JAVASCRIPT,
    "typescript": _JAVASCRIPT,
    "bash": _Cells(
        _as_assignments,
        "_cw_env=$(builtin declare -p {names} 2>/dev/null) || :\nbuiltin export {new}\n",
        # The next cell finds the status of the caller's.
        '_cw_status=$?\nbuiltin unset -v {names}\nbuiltin eval "$_cw_env"\n'
        'builtin unset -v _cw_env\n(builtin exit "$_cw_status")\n',
    ),
    "r": _Cells(
        _as_vector,
        "local({{ new <- {new}\n"
        "options(cellwall.env = Sys.getenv(names(new), unset = NA, names = TRUE))\n"
        "stopifnot(do.call(Sys.setenv, as.list(new))) }})\n",
        'local({{ old <- getOption("cellwall.env"); new <- is.na(old)\n'
        "Sys.unsetenv(names(old)[new])\n"
        "if (!all(new)) do.call(Sys.setenv, as.list(old[!new]))\n"
        "options(cellwall.env = NULL) }})\n",
    ),
    # A Java machine cannot change its environment: these are system properties.
    "java": _Cells(
        _as_pairs,
        "java.util.HashMap<String, String> _cw_env = java.util.Arrays.stream(new String[][]"
        " {{{new}}}).collect(java.util.HashMap::new, (old, each) -> old.put(each[0],"
        " System.setProperty(each[0], each[1])), java.util.HashMap::putAll);",
        "{{ _cw_env.forEach((k, v) -> {{ if (v == null) System.clearProperty(k);"
        " else System.setProperty(k, v); }}); _cw_env = null; }}",
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
    words = {"new": cells.form(wanted), "names": " ".join(wanted)}
    try:
        made = await sandbox.run(cells.begin.format(**words), context.language, context.name)
        if not made.ok:
            raise UsageError("env_vars: they could not be set")
        yield
    finally:
        await sandbox.run(cells.end.format(**words), context.language, context.name)
