"""`cellwall sandbox`: sandboxes on a server, listed, made, looked into and removed.

Not the embedded engine (`run`, `shell`). Called by `main`; running things in them is in
`sandbox_exec` and `sandbox_shell`, copying in `sandbox_copy`. Invariant: what a script reads (an
id, JSON) is on stdout alone.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cellwall.apps.cli.console.remote import (
    AsJson,
    Key,
    Url,
    Which,
    connected,
    duration,
    found,
    numbers,
    pairs,
)
from cellwall.apps.cli.console.terminal import complain, visible
from cellwall.apps.cli.one_program import network_of
from cellwall.apps.cli.sandboxes import copy as sandbox_copy
from cellwall.apps.cli.sandboxes import exec as sandbox_exec
from cellwall.apps.cli.sandboxes import history as sandbox_history
from cellwall.apps.cli.sandboxes import network as sandbox_network
from cellwall.apps.cli.sandboxes import shell as sandbox_shell
from cellwall.apps.cli.sandboxes import state as sandbox_state
from cellwall.apps.cli.words import image_words, network_words

if TYPE_CHECKING:
    from cellwall.client.blocking import RemoteSandbox

_FOLLOW_S = 1.0

app = typer.Typer(
    help="Use sandboxes on a server.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for module in (
    *(sandbox_exec, sandbox_shell, sandbox_copy, sandbox_history, sandbox_state),
    sandbox_network,
):
    module.register(app)


@app.command("ls")
def list_all(
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Those that ended a while ago, too.")
    ] = False,
    metadata: Annotated[
        list[str] | None,
        typer.Option("--metadata", metavar="NAME=VALUE", help="Only those; repeatable."),
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
    key: Key = None,
) -> None:
    """List your sandboxes, newest first.

    \b
    cellwall sandbox ls
    cellwall sandbox ls --all --metadata job=7 --json
    """
    with connected(url, key) as client:
        state = None if everything else "live"
        listed = client.sandboxes(state=state, metadata=pairs(metadata, "--metadata"))
        if as_json:
            typer.echo(json.dumps([_facts(each) for each in listed], indent=2))
            return
        from cellwall.apps.cli.console.table import show

        columns = ["ID", "NAME", "TEMPLATE", "STATUS", "AGE", "ENDS IN", "MEMORY", "METADATA"]
        show(columns, [_row(each) for each in listed])


def _facts(sandbox: RemoteSandbox) -> dict[str, Any]:
    return dict(sandbox.facts)


def _row(sandbox: RemoteSandbox) -> list[str]:
    facts, now = sandbox.facts, time.time()
    is_live = facts["status"] != "stopped"
    return [
        sandbox.id,
        sandbox.name or "",
        sandbox.template,
        facts["status"],
        duration(now - sandbox.created_at),
        duration(sandbox.ends_at - now) if is_live else "",
        f"{sandbox.limits.memory_mb} MiB",
        " ".join(f"{name}={value}" for name, value in sandbox.metadata.items()),
    ]


@app.command()
def create(  # noqa: PLR0913, PLR0917 - one parameter per option
    template: Annotated[str, typer.Option(help="What is installed and preloaded.")] = "python",
    name: Annotated[str | None, typer.Option(help="A name to call it by.")] = None,
    memory: Annotated[int | None, typer.Option(help="Memory in MiB.")] = None,
    cpu: Annotated[float | None, typer.Option(help="Share of CPUs; 1 is one core.")] = None,
    idle: Annotated[
        float | None, typer.Option(help="Seconds without activity after which it ends.")
    ] = None,
    life: Annotated[float | None, typer.Option(help="Seconds after which it ends.")] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="Any limit by its own name; repeatable."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A variable inside; repeatable."),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A note for yourself; repeatable."),
    ] = None,
    isolation: Annotated[
        str | None, typer.Option(help="Weakest acceptable level: process, namespace, kernel or vm.")
    ] = None,
    trust: Annotated[
        str | None, typer.Option(help="Instead of a level: untrusted, semi or trusted.")
    ] = None,
    allow: network_words.Allow = None,
    deny: network_words.Deny = None,
    network: network_words.Network = None,
    package: network_words.Package = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A secret that the server keeps, whose hosts --allow has to name; repeatable.",
        ),
    ] = None,
    image: image_words.ServersImage = None,
    user: image_words.User = None,
    volume: image_words.Volume = None,
    profile: Annotated[
        str | None, typer.Option(help="debug: its programs may trace one another (strace, gdb).")
    ] = None,
    auto_pause: Annotated[
        float | None,
        typer.Option(help="Seconds without activity after which it pauses instead of ending."),
    ] = None,
    hibernate: Annotated[
        float | None,
        typer.Option(help="Seconds of a pause after which it is written to disk and ends there."),
    ] = None,
    resume: Annotated[
        str | None, typer.Option(help="manual: a request to it while it is paused is refused.")
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
    key: Key = None,
) -> None:
    """Create a sandbox and print its id.

    \b
    id=$(cellwall sandbox create --template data --memory 1024)
    cellwall sandbox create --name build --life 600 --metadata job=7
    cellwall sandbox create --allow example.org --package requests
    cellwall sandbox create --allow api.example.org --secret API_KEY
    cellwall sandbox create --image python:3.12-slim --user root --volume data:/data
    """
    image_words.check("sandbox create", image, user)
    known = {"memory_mb": memory, "cpus": cpu, "idle_s": idle, "life_s": life}
    limits = {**known, **numbers(limit, "--limit")}
    with connected(url, key) as client:
        made = client.Sandbox(
            template,
            {name: value for name, value in limits.items() if value is not None},
            name=name,
            env=pairs(env, "--env"),
            metadata=pairs(metadata, "--metadata"),
            isolation=isolation,
            trust=trust,
            network=network_of(allow, deny, network),
            packages=package or (),
            secrets=secret or (),
            image=image,
            user=user,
            volumes=image_words.volumes_of(volume),
            profile=profile,
            auto_pause_s=auto_pause,
            hibernate_s=hibernate,
            resume=resume,
        )
        for limited, wanted in made.clipped.items():
            complain(f"{limited}: {wanted:g} is above this server's ceiling; it is lower")
        typer.echo(json.dumps(_facts(made), indent=2) if as_json else made.id)


@app.command("rm")
def remove(
    which: Annotated[list[str], typer.Argument(metavar="SANDBOX...", help="Ids, or names.")],
    url: Url = None,
    key: Key = None,
) -> None:
    """Destroy sandboxes and what runs in them.

    \b
    cellwall sandbox rm build
    cellwall sandbox rm $(cellwall sandbox ls --json | jq -r '.[].id')
    """
    with connected(url, key) as client:
        for word in which:
            sandbox = found(client, word)
            sandbox.close()
            typer.echo(sandbox.id)


@app.command()
def pause(
    which: Annotated[list[str], typer.Argument(metavar="SANDBOX...", help="Ids, or names.")],
    url: Url = None,
    key: Key = None,
) -> None:
    """Stop what runs in sandboxes, to go on later where it was.

    \b
    cellwall sandbox pause build
    """
    with connected(url, key) as client:
        for word in which:
            sandbox = found(client, word)
            sandbox.pause()
            typer.echo(sandbox.id)


@app.command("hibernate")
def lie_down(
    which: Annotated[list[str], typer.Argument(metavar="SANDBOX...", help="Ids, or names.")],
    drop: Annotated[
        bool, typer.Option("--drop", help="End what cannot be kept, such as commands.")
    ] = False,
    files: Annotated[
        bool, typer.Option("--files", help="Keep the files alone: all that runs ends.")
    ] = False,
    url: Url = None,
    key: Key = None,
) -> None:
    """Write sandboxes to disk and end their processes, to go on later.

    \b
    cellwall sandbox hibernate build
    """
    with connected(url, key) as client:
        for word in which:
            sandbox = found(client, word)
            for left in sandbox.hibernate(drop=drop, keep="files" if files else "session"):
                complain(f"{sandbox.id}: left behind: {left}")
            typer.echo(sandbox.id)


@app.command("resume")
def go_on(
    which: Annotated[list[str], typer.Argument(metavar="SANDBOX...", help="Ids, or names.")],
    url: Url = None,
    key: Key = None,
) -> None:
    """Let paused and hibernated sandboxes go on.

    \b
    cellwall sandbox resume build
    """
    with connected(url, key) as client:
        for word in which:
            sandbox = found(client, word)
            sandbox.resume()
            typer.echo(sandbox.id)


@app.command(short_help="Say what happened to a sandbox.")
def logs(
    which: Which,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the sandbox ends.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON per record.")] = False,
    url: Url = None,
    key: Key = None,
) -> None:
    """Say what happened to a sandbox: its life, not what its programs print.

    \b
    cellwall sandbox logs build
    cellwall sandbox logs --follow build
    """
    with connected(url, key) as client:
        sandbox, after = found(client, which), 0
        while True:
            records = sandbox.logs(after, limit=1000)
            for record in records:
                typer.echo(json.dumps(record) if as_json else _line(record))
                after = record["seq"]
            if records:
                continue
            if not follow or sandbox.status == "stopped":
                return
            time.sleep(_FOLLOW_S)


def _line(record: dict[str, Any]) -> str:
    known = ("seq", "time", "event")
    rest = [f"{name}={value}" for name, value in record.items() if name not in known]
    return visible(" ".join([record["time"], record["event"], *rest]))
