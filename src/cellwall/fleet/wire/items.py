"""Items: what a node is asked to do, as JSON, and the arguments of the library that it stands for.

Both ends have the same version, which `NodeActor.open` checks; there is no second reader. What
cannot cross to another machine is refused here, with a remedy. The invariant: only JSON crosses, so
that nothing a sandbox has written is ever unpickled.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cellwall.model.errors import UsageError
from cellwall.wire import asking

if TYPE_CHECKING:
    from cellwall.model.limits import Limits

Json = dict[str, Any]

_STAYS = {
    "on_event": "take the output from the result; a fleet does not stream",
    "on_start": "leave it out; a fleet does not stream",
    "on_stdout": "take `stdout` from the result; a fleet does not stream",
    "on_stderr": "take `stderr` from the result; a fleet does not stream",
    "tools": "call cellwall.run on this machine, whose functions these are",
    "secrets": "use a server, which keeps secrets: `cellwall serve`",
    "volumes": "use files, or cellwall.run on the machine that has the volume",
}
"""Arguments of the library that a fleet does not take, and what to do instead."""


def check_crosses(options: Mapping[str, Any]) -> None:
    """Raise `UsageError` for an argument that stays on its machine."""
    for name, remedy in _STAYS.items():
        if options.get(name):
            raise UsageError(f"{name}: a fleet does not take it to another machine", remedy=remedy)


def program(  # noqa: PLR0913 - the arguments of a program
    code: str,
    *,
    language: str = "python",
    stdin: str | bytes | None = None,
    arguments: Mapping[str, Any] | None = None,
    files: Mapping[str, str | bytes] | None = None,
    timeout: float | None = None,
    limits: Limits | Mapping[str, Any] | None = None,
    template: str = "python",
    runtime: str | None = None,
    isolation: str | None = None,
    trust: str | None = None,
    demand_hard: bool = False,
    start: str = "fork",
    env: Mapping[str, str] | None = None,
    args: Sequence[str] = (),
    collect: Sequence[str] = (),
    artifacts: str | None = None,
    compile_options: Sequence[str] = (),
    compile_limits: Limits | Mapping[str, Any] | None = None,
    network: object = None,
    packages: Sequence[str] = (),
    image: str | None = None,
    user: str | None = None,
    **more: Any,  # noqa: ANN401 - refused by name
) -> Json:
    """Return one program as JSON; the arguments are those of `cellwall.arun`.

    Raises `UsageError` for values that JSON does not have, and for what stays on its machine.
    """
    check_crosses(more)
    _check_known(more)
    wanted = {"language": language, "template": template, "start": start}
    defaults = {"language": "python", "template": "python", "start": "fork"}
    return {
        "code": asking.source(code)["code"],
        **asking.stdin(stdin),
        # Only what differs from the default: most programs give one or two of them.
        **{name: value for name, value in wanted.items() if value != defaults[name]},
        **asking.given(
            arguments=None if arguments is None else dict(arguments),
            files=asking.files(files),
            timeout=timeout,
            limits=asking.limits(limits),
            env=asking.env(env),
            artifacts=artifacts,
            compile_limits=asking.limits(compile_limits),
            network=asking.network(network),
            image=image,
            user=user,
            runtime=runtime,
            isolation=isolation,
            trust=trust,
            demand_hard=demand_hard or None,
            compile_options=_listed(compile_options, "compile_options"),
            args=_listed(args, "args"),
            collect=_listed(collect, "collect"),
            packages=_listed(packages, "packages"),
        ),
    }


def _listed(value: Sequence[str], what: str) -> list[str] | None:
    return asking.words(value, what) or None


def _check_known(more: Mapping[str, Any]) -> None:
    unknown = sorted(set(more) - set(_STAYS))
    if unknown:
        raise UsageError(
            f"{unknown[0]}: a program has no such argument",
            remedy="give those of cellwall.arun",
        )


def sandbox(  # noqa: PLR0913 - the arguments of a sandbox
    template: str = "python",
    limits: Limits | Mapping[str, Any] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    runtime: str | None = None,
    isolation: str | None = None,
    trust: str | None = None,
    demand_hard: bool = False,
    start: str = "fork",
    network: object = None,
    packages: Sequence[str] = (),
    image: str | None = None,
    user: str | None = None,
    **more: Any,  # noqa: ANN401 - refused by name
) -> Json:
    """Return the request for a sandbox as JSON; the arguments are those of `AsyncSandbox.create`.

    Raises `UsageError`.
    """
    check_crosses(more)
    _check_known(more)
    return asking.given(
        template=template,
        limits=asking.limits(limits),
        env=asking.env(env),
        runtime=runtime,
        isolation=isolation,
        trust=trust,
        demand_hard=demand_hard,
        start=start,
        network=asking.network(network),
        packages=_listed(packages, "packages"),
        image=image,
        user=user,
    )


def options_of(body: Mapping[str, Any]) -> Json:
    """Return the library's arguments of a program's or a cell's JSON, beside `code`."""
    options = {name: value for name, value in body.items() if name != "stdin_b64"}
    if "stdin_b64" in body:
        options["stdin"] = data_of(body["stdin_b64"])
    if "files" in body:
        options["files"] = {
            path: content if isinstance(content, str) else data_of(content["content_b64"])
            for path, content in body["files"].items()
        }
    return options


def text_of(data: bytes) -> str:
    """Return bytes as text of JSON."""
    return base64.b64encode(data).decode("ascii")


def data_of(text: str) -> bytes:
    """Return the bytes of `text_of`."""
    return base64.b64decode(text)


def encoded(message: Mapping[str, Any]) -> bytes:
    """Return a message of ours as JSON."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii")


def item(ticket: str, op: str, body: Mapping[str, Any], sandbox_id: str = "") -> bytes:
    """Return one item: under which ticket, what to do, with what, and in which sandbox.

    Raises `UsageError` for values that JSON does not have.
    """
    return asking.encoded({"id": ticket, "op": op, "body": body, "sandbox": sandbox_id})
