"""Catalog: the tools, with schemas that name the languages and templates of this machine.

`tools` implements them. The invariants: a value that an enum offers can be used now, and a value
that it does not offer is refused before anything starts; and importing this module, which happens
before the first sandbox starts, imports neither the SDK nor pydantic.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cellwall.apps.mcp.tools.preferred import preferred
from cellwall.apps.mcp.tools.schemas import OUTPUTS
from cellwall.engine.templates.store import TemplateStore
from cellwall.languages.registry import LANGUAGES
from cellwall.languages.tools import is_installed
from cellwall.model.errors import UsageError
from cellwall.model.network import NO_NETWORK, NetworkPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mcp_types import Tool

    from cellwall.model.secret import Secret
    from cellwall.model.volume import VolumeMount

_KEPT_S = 5.0
"""Seconds for which the last look is reused: a template built meanwhile is offered afterwards."""
_MAKES = ("run_code", "create_sandbox")
"""Tools that make a sandbox."""
_ON_IMAGES = ("python", "bash")
"""Languages that are offered on an image: its own interpreters run them, if it has them."""

DESCRIPTIONS = {
    "run_code": "Run a program once in a fresh, isolated sandbox that is destroyed afterwards. "
    "Nothing is kept between calls; use create_sandbox and execute for that.",
    "create_sandbox": "Create an isolated sandbox that keeps variables and files between calls. "
    "It ends with destroy_sandbox, with this session, or when it is unused for long.",
    "execute": "Run code in a sandbox. Python variables, imports and functions stay for the next "
    "call, as in a notebook.",
    "run_command": "Run a shell command in a sandbox and wait for its end.",
    "read_file": "Read a file of a sandbox: text, or an image to look at.",
    "write_file": "Write a text file into a sandbox, directories included.",
    "list_files": "List a directory of a sandbox.",
    "upload": "Put bytes into a file of a sandbox: from base64, a data: URI, or a file of another "
    "sandbox.",
    "download": "Get a file of a sandbox as a resource, for the user to keep.",
    "destroy_sandbox": "End a sandbox and everything in it.",
    "fork_sandbox": "Copy a sandbox as it is now, with its Python variables and its files, to try "
    "several ways from the same point. Each copy is a sandbox of its own; other processes and "
    "other contexts are not copied.",
    "snapshot_sandbox": "Keep a sandbox's Python variables and files as they are now, to go back "
    "to them later with restore_snapshot.",
    "restore_snapshot": "Make a new sandbox that goes on from a snapshot; any number of times.",
    "list_snapshots": "List the snapshots, the latest last.",
    "delete_snapshot": "Delete a snapshot. Sandboxes that were made of it live on.",
}
_READS = frozenset({"read_file", "list_files", "download", "list_snapshots"})
_REMOVES = frozenset({"destroy_sandbox", "write_file", "upload", "delete_snapshot"})


@dataclass(frozen=True, slots=True)
class Available:
    """Languages and templates of this machine."""

    languages: tuple[str, ...]
    templates: dict[str, str]
    """Descriptions by name of the built templates, and of one that is built within a moment."""

    @property
    def best_template(self) -> str:
        """Template of a call that names none."""
        return preferred(self.templates.__contains__)

    def template(self, name: str | None) -> str:
        """Return the template of a call; `UsageError` if it is not available."""
        return self._one("template", name, self.best_template, tuple(self.templates))

    def language(self, name: str | None) -> str:
        """Return the language of a call; `UsageError` if it is not available."""
        return self._one("language", name, "python", self.languages)

    @staticmethod
    def _one(what: str, name: str | None, default: str, known: tuple[str, ...]) -> str:
        if name is None or name in known:
            return name or default
        raise UsageError(
            f"{what}: {name[:60]!r} is not available here", remedy=f"use one of {', '.join(known)}"
        )


class Catalog:
    """Cached view of the available languages and templates."""

    def __init__(
        self,
        state_dir: Path,
        network: NetworkPolicy = NO_NETWORK,
        image: str | None = None,
        volumes: Sequence[VolumeMount] = (),
        secrets: Sequence[Secret] = (),
    ) -> None:
        """`state_dir` contains the templates; `network` is the policy of every sandbox.

        `image`: what the operator named as the root of every sandbox, instead of a template.
        `volumes`: what every sandbox sees of the operator's volumes. `secrets`: what the network
        puts into its requests.
        """
        self._besides = _of_volumes(volumes) + _of_secrets(secrets)
        """What a model needs to know besides of a sandbox that it makes."""
        self._network = network
        self._image = image
        self._store = TemplateStore(state_dir)
        self._seen: Available | None = None
        self._seen_s = 0.0

    def available(self) -> Available:
        """Return what can be used now; reads a few files."""
        now = time.monotonic()
        if self._seen is None or now - self._seen_s > _KEPT_S:
            self._seen, self._seen_s = self._look(), now
        return self._seen

    def _look(self) -> Available:
        languages = tuple(name for name, each in LANGUAGES.items() if is_installed(each))
        if self._image is not None:
            return Available(_ON_IMAGES, {"python": f"the image {self._image}"})
        definitions = self._store.definitions()
        built = {
            name: each.description
            for name, each in definitions.items()
            if name == "python" or self._store.find(name) is not None
        }
        return Available(languages or ("python",), built)

    def tools(self) -> list[Tool]:
        """Return the tools as a client sees them."""
        from mcp_types import Tool, ToolAnnotations

        from cellwall.apps.mcp.tools.arguments import BY_TOOL

        here = self.available()
        return [
            Tool(
                name=name,
                description=_described(name, here, self._network, self._image)
                + (self._besides if name in _MAKES else ""),
                input_schema=_input_schema(model.model_json_schema(), name, here),
                output_schema=OUTPUTS[name],
                annotations=ToolAnnotations(
                    read_only_hint=name in _READS,
                    destructive_hint=name in _REMOVES,
                    idempotent_hint=name in _READS or name in _REMOVES,
                    open_world_hint=False,
                ),
            )
            for name, model in BY_TOOL.items()
        ]


def _of_volumes(volumes: Sequence[VolumeMount]) -> str:
    """Return what a model needs to know of volumes."""
    said = (f"{each.path}{' (read-only)' if each.read_only else ''}" for each in volumes)
    return f" Files in {', '.join(said)} outlive the sandbox." if volumes else ""


def _of_secrets(secrets: Sequence[Secret]) -> str:
    """Return what a model needs to know of secrets."""
    said = (f"{each.name} (for {', '.join(map(str, each.hosts))})" for each in secrets)
    return (
        f" Variables hold placeholders of secrets: {', '.join(said)}. Use them in headers, "
        "the query or basic authentication as if they were the values, which the network puts in."
        if secrets
        else ""
    )


def _described(name: str, here: Available, network: NetworkPolicy, image: str | None) -> str:
    text = DESCRIPTIONS[name]
    if name not in _MAKES:
        return text
    if image is not None:
        return f"{text} Its root is the container image {image}. {_outside(network)}"
    listed = "; ".join(f"{each}: {said}" for each, said in here.templates.items())
    text = f"{text} Templates: {listed}. The default is {here.best_template}."
    return f"{text} {_outside(network)}"


def _outside(network: NetworkPolicy) -> str:
    """Return what a model needs to know of a sandbox's way out."""
    install = "pip, uv and npm install packages."
    if network.mode == "none":
        return "There is no network." if network.packages is None else f"No network, but {install}"
    hosts = ", ".join(map(str, network.rules[:10]))
    where = "any public address" if network.mode == "open" else hosts or "no host"
    but = ", ".join(map(str, network.denied[:10]))
    reach = f"The network reaches {where}{f' but not {but}' if but else ''}."
    return reach if network.packages is None else f"{reach} {install[0].upper()}{install[1:]}"


def _input_schema(whole: dict[str, Any], name: str, here: Available) -> dict[str, Any]:
    """Return what a tool takes here, in few words: `whole` is the schema of its arguments."""
    schema: dict[str, Any] = _short(whole)
    schema.pop("description")
    known = {
        "language": ("python", list(here.languages)),
        "template": (here.best_template, list(here.templates)),
    }
    for argument, (default, values) in known.items():
        if argument in schema["properties"]:
            schema["properties"][argument]["enum"] = values
            if name != "execute":  # there it is the context's language
                schema["properties"][argument]["default"] = default
    return schema


def _short(schema: Any) -> Any:  # noqa: ANN401 - JSON
    """Return a schema without parts that only cost a model's attention: titles, nulls,
    references."""
    return _shortened(schema, schema.get("$defs", {}))


def _shortened(value: Any, definitions: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, list):
        return [_shortened(each, definitions) for each in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        named = definitions[value["$ref"].rpartition("/")[2]]
        rest = {key: each for key, each in value.items() if key != "$ref"}
        return _shortened({**named, **rest}, definitions)
    forms = [each for each in value.get("anyOf", ()) if each != {"type": "null"}]
    if len(forms) == 1:
        rest = {key: each for key, each in value.items() if key != "anyOf"}
        return _shortened({**forms[0], **rest}, definitions)
    return {
        key: _shortened(each, definitions)
        for key, each in value.items()
        if not (key in _NOISE and not isinstance(each, dict)) and key != "$defs"
        if not (key == "default" and each is None)
    }


_NOISE = frozenset({"title"})
