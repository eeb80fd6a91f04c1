"""Fill in the generated blocks of the documentation: command help, snippets, tables.

Not a site builder. Run by hand (`python docs/generate.py`) after a change of a command or of a
snippet; `--check` only compares, which is what the tests do. Invariant: what stands between a
marker and the end of its block comes from the program itself, never from a keyboard.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from pathlib import Path

import runtime_tables

DOCS = Path(__file__).resolve().parent
PAGES = (
    *(
        "cli.md",
        "fleet.md",
        "history.md",
        "library.md",
        "network.md",
        "operations.md",
        "packages.md",
        "runtimes.md",
    ),
    *("sdk.md", "server.md", "settings.md", "state.md", "volumes.md"),
)
_TABLE = re.compile(r"<!-- table: (\w+) -->\n.*?<!-- end -->\n", re.DOTALL)
_BLOCK = re.compile(r"<!-- (help|snippet): ?([^>]*?) -->\n```(\w+)\n.*?```\n", re.DOTALL)


def command_help(words: str) -> str:
    """Return what `cellwall WORDS --help` prints on a terminal of 80 columns."""
    from cellwall.apps.cli.commands import app_of

    os.environ.update({"COLUMNS": "80", "LINES": "40", "NO_COLOR": "1"})
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        app_of(words.split())(
            [*words.split(), "--help"], prog_name="cellwall", standalone_mode=False
        )
    return printed.getvalue()


def _filled(match: re.Match[str]) -> str:
    kind, name, language = match.groups()
    if kind == "help":
        text = command_help(name)
    else:
        text = (DOCS / "snippets" / name).read_text(encoding="utf-8")
    return f"<!-- {kind}: {name} -->\n```{language}\n{text.rstrip()}\n```\n"


def _settings() -> str:
    """Return a table for each section of the settings."""
    from cellwall.apps.cli.settings_reference import reference, section_names

    about, tables = section_names(), {}
    for each in reference():
        rows = tables.setdefault(
            each.section, ["| Name | Default | What | Meaning |", "|---|---|---|---|"]
        )
        others = [f"`{word}`" for word in (each.variable, each.flag) if word]
        meaning = " ".join([each.meaning, *(["Also " + ", ".join(others) + "."] if others else [])])
        rows.append(f"| `{each.name}` | {_code(each.default)} | {each.kind} | {_cell(meaning)} |")
    return "\n\n".join(
        f"### `{section}`\n\n{about[section.strip('[]').partition('.')[0]]}\n\n" + "\n".join(rows)
        for section, rows in tables.items()
    )


def _code(default: str) -> str:
    return default if " " in default and default[0] not in '["' else f"`{default}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _routes() -> str:
    """Return the table of routes."""
    from cellwall.server.app import ENDPOINTS

    rows = ["| Method | Path | |", "|---|---|---|"]
    for each in ENDPOINTS:
        method = "any" if each.method == "*" else each.method
        path = re.sub(r":\w+}", "}", each.path)
        rows.append(f"| {method} | `{path}` | {each.summary} |")
    return "\n".join(rows)


def _capacity() -> str:
    """Return what the bench measured, for one GiB and one processor."""
    text = (DOCS.parent / "bench" / "RESULTS.md").read_text(encoding="utf-8")
    cores = int(_found(r"(\d+) cores", text))
    rows = ["| What | Measured | For planning |", "|---|---|---|"]
    for template in ("python", "data"):
        line = _found(rf"(\| extra memory .* template {template} .*)", text)
        idle, used = _found(r"\| ([\d.]+) MiB", line), _found(r"([\d.]+) MiB once each ran", line)
        rows.append(
            f"| a live sandbox of template `{template}`, idle | {idle} MiB; {used} MiB once it ran "
            f"something small | {int(1024 / float(used) / 10) * 10} per GiB |"
        )
    rate = float(_found(r"\| sustained fresh sandboxes.* ([\d.]+)/s against", text))
    http = float(_found(r"\| HTTP, fresh sandboxes.* ([\d.]+)/s against", text))
    for what, each in (("in the library", rate), ("over HTTP", http)):
        rows.append(
            f"| fresh sandbox for each program, {what} | {each:g}/s on {cores} processors "
            f"| {int(each / cores)}/s per processor |"
        )
    words = (
        f"From [bench/RESULTS.md](../bench/RESULTS.md), {cores} processors; "
        "`make bench` measures yours."
    )
    return words + "\n\n" + "\n".join(rows)


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise SystemExit(f"bench/RESULTS.md: there is nothing like {pattern}")
    return match[1]


_TABLES = {
    "capacity": _capacity,
    "settings": _settings,
    "routes": _routes,
    "contract": runtime_tables.contract,
    "corpus": runtime_tables.corpus,
    "image_corpus": runtime_tables.image_corpus,
    "jail_only": runtime_tables.jail_only,
    "not_on_images": runtime_tables.not_on_images,
}


def _tabled(match: re.Match[str]) -> str:
    return f"<!-- table: {match[1]} -->\n{_TABLES[match[1]]()}\n<!-- end -->\n"


def generated(page: Path) -> str:
    """Return `page` as it should be."""
    text = _BLOCK.sub(_filled, page.read_text(encoding="utf-8"))
    return _TABLE.sub(_tabled, text)


def _words(text: str) -> list[str]:
    # Layout and type hints of help texts belong to typer and change with its version.
    return re.sub(r"\s<[a-z\[\]]+>", "", text).split()


def main() -> int:
    """Rewrite the pages, or with `--check` name those that are out of date."""
    stale = 0
    for name in PAGES:
        page = DOCS / name
        present, wanted = page.read_text(encoding="utf-8"), generated(page)
        if "--check" in sys.argv[1:]:
            if _words(wanted) != _words(present):
                sys.stderr.write(f"docs/{name} is out of date: run python docs/generate.py\n")
                stale += 1
        elif wanted != present:
            page.write_text(wanted, encoding="utf-8")
            sys.stdout.write(f"docs/{name}: rewritten\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
