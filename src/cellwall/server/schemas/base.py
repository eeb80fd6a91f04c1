"""What every body of a request is: the base of `requests` and `tools`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(min_length=1, max_length=64)]


class StrictModel(BaseModel):
    """What every body is: strict types, no unknown names, finite numbers.

    Each is built with the first body of its kind: all of them would be a tenth of a server's start.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)
