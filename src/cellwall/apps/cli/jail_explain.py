"""`cellwall jail explain`: the jail's plan, printed as the data it is.

Not a probe and not a jail: nothing is built. Called by `main`. Invariant: what is printed is what
`jail.plan.plan` computes for the same facts and limits; no step is described here in other words.
"""

from __future__ import annotations

import json
import resource
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cellwall.model.limits import Limits

if TYPE_CHECKING:
    from cellwall.jail.plan.plan import Shape
    from cellwall.jail.plan.steps import Lockdown, SandboxPlan, Step

app = typer.Typer(
    help="Look at the jail.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def group() -> None:
    """Look at the jail."""


@app.command("explain")
def explain(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    template: Annotated[str, typer.Option(help="The template whose root is shown.")] = "python",
    memory: Annotated[int, typer.Option(help="Memory in MiB.")] = Limits().memory_mb,
) -> None:
    """Print, step by step, what a sandbox is made of and what it gives up."""
    from cellwall.apps.cli.console.built_template import built
    from cellwall.engine.templates.store import state_dir
    from cellwall.jail.inspect import host_facts
    from cellwall.jail.plan import plan

    made = built(template)
    host = host_facts.for_jails(state_dir())
    root = plan.root_plan(
        host, plan.Root(made.path, made.base_mounts, guest_path="(state)/guest/guest.pyz")
    )
    sandbox = plan.sandbox_plan(host, _shape(Limits().with_changes({"memory_mb": memory})))
    if as_json:
        typer.echo(json.dumps(_as_json(root, sandbox), indent=2))
    else:
        _print(root, sandbox)


def _shape(limits: Limits) -> Shape:
    """What the runtime would build on this host as this user, by its own rule."""
    from cellwall.linux import uid_ranges
    from cellwall.linux.cgroups import hierarchies
    from cellwall.runtimes.jail.enforcement import shape_of

    return shape_of(limits, hierarchies.discover(), rootless=uid_ranges.find().are_shared)


_NETWORK = "network namespace of its own, new or without a trace of a sandbox: empty, loopback up"


def _as_json(root: tuple[Step, ...], sandbox: SandboxPlan) -> dict[str, Any]:
    from cellwall.jail.plan import plan
    from cellwall.jail.plan.steps import as_json

    return {
        "root": [as_json(step) for step in root],
        "root_digest": plan.digest(root),
        "sandbox": [as_json(step) for step in sandbox.steps],
        "network": _NETWORK,
        "sandbox_digest": plan.digest(sandbox.steps),
        "lockdown": as_json(sandbox.lockdown),
    }


def _print(root: tuple[Step, ...], sandbox: SandboxPlan) -> None:
    typer.echo("Root, built once per template, read-only, then pivoted into:")
    for step in root:
        typer.echo(f"  {step.describe()}")
    typer.echo("\nEach sandbox, in new user, pid, mount, ipc, uts and cgroup namespaces:")
    typer.echo(f"  {_NETWORK}")
    for step in sandbox.steps:
        typer.echo(f"  {step.describe()}")
    typer.echo("\nLockdown, complete before the first byte of code is read:")
    for line in _lockdown(sandbox.lockdown):
        typer.echo(f"  {line}")


def _lockdown(lockdown: Lockdown) -> list[str]:
    names = {
        value: name
        for name, value in vars(resource).items()
        if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"  # BSD's name of NOFILE
    }
    lines = [
        f"{names.get(number, number)} {soft} {hard}" for number, soft, hard in lockdown.rlimits
    ]
    lines += [
        f"uid {lockdown.uid}, gid {lockdown.gid}, no groups, no capabilities, no_new_privs",
        f"umask {lockdown.umask:04o}",
    ]
    if lockdown.landlock_abi:
        lines.append(f"Landlock ABI {lockdown.landlock_abi}: read {' '.join(lockdown.read_exec)}")
        lines.append(f"Landlock ABI {lockdown.landlock_abi}: write {' '.join(lockdown.write)}")
    else:
        lines.append("Landlock: this kernel has none")
    lines.append("seccomp: allow-list of linux/seccomp.policy, everything else is refused")
    for name in lockdown.allows_more:
        lines.append(f"seccomp: and what linux/{name} names is allowed as well")
    if lockdown.refusals:
        lines.append(f"seccomp: and what linux/{lockdown.refusals} names is refused as well")
    return lines
