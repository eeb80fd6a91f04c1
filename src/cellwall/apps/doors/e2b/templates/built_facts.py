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

    @classmethod
    def of(cls, own: Own) -> BuiltFacts:
        """Return the facts of a template, also of one that another door made."""
        text = (own.get("labels") or {}).get(LABEL)
        if not text:
            return cls()
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return cls()

    def kept(self) -> str:
        """Return the label that keeps them."""
        return json.dumps(self.model_dump(exclude_none=True), sort_keys=True)
