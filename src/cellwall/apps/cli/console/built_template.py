"""The template that a command needs, built now if it is not there yet.

Called by the commands that start sandboxes, and by `templates`. Invariant: progress goes to stderr,
so that a first `cellwall run` stays a filter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.apps.cli.console.terminal import complain

if TYPE_CHECKING:
    from cellwall.engine.templates.store import TemplateStore
    from cellwall.model.template import BuiltTemplate


def store() -> TemplateStore:
    """Return the store of this user's state directory."""
    from cellwall.engine.templates.store import TemplateStore, state_dir

    return TemplateStore(state_dir())


def built(name: str) -> BuiltTemplate:
    """Return the template `name`, built now if it is not there yet."""
    templates = store()
    found = templates.find(name)
    if found is not None:
        return found
    complain(f"template {name}: building it, once")
    return templates.build(name, progress)


def progress(line: str) -> None:
    """Show a line of a build."""
    complain(f"  {line}")
