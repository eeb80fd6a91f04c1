"""What a client said of a template beyond its files, kept in a label of the template's image.

The image lasts as long as the template, and whatever name it gets, its label comes with it. The
invariant: a label that another wrote is a stranger's: it names what runs inside, with the rights of
a sandbox, and how large that sandbox asks to be; what cannot be read counts as nothing.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

if TYPE_CHECKING:
    from cellwall.apps.doors.e2b.templates.names import Own

LABEL = "e2b.template"
VARIABLE = "e2b.env."
"""Beginning of the labels that keep the variables of a template's steps."""
MOST_VARIABLES = 200
MOST_COMMAND = 8192
"""Characters of a command that is started or repeated."""
_Command = Annotated[str, Field(max_length=MOST_COMMAND)]


class BuiltFacts(BaseModel):
    """The facts."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    user: Annotated[str, Field(max_length=128)] | None = None
    """User of files and commands that name none; None: the image's own."""
    start: _Command | None = None
    """Command that runs from a sandbox's beginning on."""
    ready: _Command | None = None
    """Command that succeeds as soon as the sandbox can be used."""
    cpus: Annotated[int, Field(ge=1, le=1024)] | None = None
    memory_mb: Annotated[int, Field(ge=1, le=1 << 24)] | None = None
    env: Annotated[dict[str, str], Field(exclude=True)] = {}
    """Variables of the steps, for both commands and for templates that begin with this one; the
    sandboxes have them only where the operator says so."""

    @classmethod
    def of(cls, own: Own) -> BuiltFacts:
        """Return the facts of a template, also of one that another door made."""
        labels: dict[str, str] = own.get("labels") or {}
        names = [each for each in labels if each.startswith(VARIABLE)][:MOST_VARIABLES]
        env = {each.removeprefix(VARIABLE): labels[each] for each in names}
        try:
            found = cls.model_validate_json(labels.get(LABEL) or "{}")
        except ValidationError:
            found = cls()
        return found.model_copy(update={"env": env})

    def kept(self) -> str:
        """Return the label that keeps them."""
        return json.dumps(self.model_dump(exclude_none=True), sort_keys=True)
