"""The options of `cellwall run`: one program in one fresh sandbox, as a filter.

Not what the command does (`one_program`), nor for sessions (`shell`). Called by `commands`.
`run_words` reads the usual options without this module: a test compares the two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cellwall.apps.cli.words import image_words, network_words


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run", short_help="Run one program in a fresh sandbox.")(run)


def run(  # noqa: PLR0913, PLR0917 - one parameter per option
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="The program; `-` reads it from standard input."),
    ] = None,
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS", help="The program's own arguments."),
    ] = None,
    code: Annotated[str | None, typer.Option("-c", help="Run this text instead of a file.")] = None,
    language: Annotated[
        str | None,
        typer.Option(
            "--language", "-l", help="Language; default: the file's extension, or python."
        ),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(help="What is installed and preloaded; default: python, data for SQL."),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            help="Use an image as the root, and run FILE ARGS as a command in it, or what it says: "
            "./task.tar, docker://name, or a registry's python:3.12-slim."
        ),
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="A user of the image, such as root; default: the image's.")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(help="On an image; debug: its programs may trace one another (strace, gdb)."),
    ] = None,
    volume: image_words.Volume = None,
    stdin: Annotated[
        str | None, typer.Option(metavar="FILE", help="The program's input, `-` for our own.")
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Option(
            "--file",
            metavar="PATH[:NAME]",
            help="Put our file or folder into the working directory, under its own name or NAME; "
            "repeatable.",
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=VALUE]", help="A variable, or one of ours; repeatable."),
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=JSON", help="An argument for the program; repeatable."),
    ] = None,
    artifacts: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", help="Bring back the files of this folder of the program's."
        ),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(
            metavar="DIRECTORY", help="A new directory for --artifacts; default: its name."
        ),
    ] = None,
    timeout: Annotated[float | None, typer.Option(help="Wall time in seconds.")] = None,
    memory: Annotated[int | None, typer.Option(help="Memory in MiB.")] = None,
    cpu: Annotated[float | None, typer.Option(help="Share of CPUs; 1 is one core.")] = None,
    pids: Annotated[int | None, typer.Option(help="Processes and threads.")] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="Any limit by its own name; repeatable."),
    ] = None,
    compile_option: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="An option for the compiler; repeatable."),
    ] = None,
    compile_limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="A limit of the compile stage; repeatable."),
    ] = None,
    allow: network_words.Allow = None,
    deny: network_words.Deny = None,
    network: network_words.Network = None,
    package: network_words.Package = None,
    secret: network_words.Secret = None,
    isolation: Annotated[
        str | None, typer.Option(help="Weakest acceptable level: process, namespace, kernel or vm.")
    ] = None,
    trust: Annotated[
        str | None, typer.Option(help="Instead of a level: untrusted, semi or trusted.")
    ] = None,
    runtime: Annotated[
        str | None, typer.Option(help="A runtime by name instead of the fastest that fits.")
    ] = None,
    demand_hard: Annotated[
        bool,
        typer.Option("--demand-hard", help="Refuse to run where the kernel cannot hold a limit."),
    ] = False,
    start: Annotated[
        str,
        typer.Option(
            metavar="fork|exec", help="Fork a warm interpreter, or exec one that shares nothing."
        ),
    ] = "fork",
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Run one program in a fresh sandbox; its exit status becomes ours.

    Ends that are not the program's own: 124 wall time, 137 memory, 128+n signal n, 130
    interrupted, 125 failure of cellwall, 1 any other limit.
    """
    given = dict(locals())
    from cellwall.apps.cli.one_program import run_program

    raise typer.Exit(run_program(given))
