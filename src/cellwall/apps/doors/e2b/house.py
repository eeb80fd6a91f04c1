"""House: what the parts of the door share: its options, the tokens of sandboxes, its clients.

Made once for a server, from the operator's options in `[doors.e2b]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cellwall.apps.doors import exchange
from cellwall.apps.doors.e2b.clients import Clients
from cellwall.apps.doors.e2b.facts import CLIENT_ID, ENVD_VERSION, Facts
from cellwall.apps.doors.e2b.tokens import SandboxTokens
from cellwall.apps.doors.e2b.uploads.archives import Uploads
from cellwall.apps.doors.e2b.uploads.links import UploadLinks
from cellwall.model.errors import UsageError
from cellwall.server.core.settings import LOOPBACK
from cellwall.server.http.guards import name_of_host
from cellwall.store import key_file

if TYPE_CHECKING:
    from cellwall.client.sandbox import AsyncSandbox
    from cellwall.server.core.request import Request
    from cellwall.server.state import State

_KEY_FILE = "e2b.key"
"""Name of the file in the state directory from whose key the tokens of sandboxes are derived."""
_UPLOADS = "e2b-uploads"
"""Name of the folder in the state directory with the files of builds."""
_UPLOADS_MB = 1024
_TEMPLATES = {"base": "python", "code-interpreter-v1": "data"}
_OF_BASE = ("e2bdev/base", "e2bdev/code-interpreter", *_TEMPLATES)
"""Names, of images and of templates, that `base_image` stands for where templates are built."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the door."""

    templates: Mapping[str, str] = field(default_factory=lambda: dict(_TEMPLATES))
    """Names that E2B's clients use, and the templates that they stand for here."""
    domain: str | None = None
    """Name below which each port of each sandbox has a name of its own; a wildcard of the
    operator's DNS leads there."""
    public_ports: bool = False
    """Whether a caller may open the ports of a sandbox to requests without a token."""
    images: Mapping[str, str] = field(default_factory=dict)
    """Names of images and of E2B's templates that builds begin with, and images of ours."""
    uploads_mb: int = _UPLOADS_MB
    """Bound of the files that a tenant has uploaded for builds; all have four times as much."""
    url: str | None = None
    """Address by which clients reach the door; None: the one that a request came to."""
    template_env: bool = False
    """Whether variables of a template's steps are those of its sandboxes, too. E2B's clients send
    `ARG` and `ENV` of a Dockerfile alike, so that both are, or neither."""

    def image_of(self, name: str) -> str | None:
        """Return the image that the operator has for a name; a missing tag is `latest`."""
        return self.images.get(name) or self.images.get(name.removesuffix(":latest"))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Return the options; `UsageError` for one that is unknown or of the wrong type."""
        for name, value in given.items():
            if name not in _KINDS:
                raise UsageError(
                    f"settings: doors.e2b.{name[:40]} is not known", remedy=_KNOWN_OPTIONS
                )
            is_right = isinstance(value, _KINDS[name])
            if name in {"templates", "images"} and is_right:
                is_right = all(isinstance(each, str) for pair in value.items() for each in pair)
            if name == "uploads_mb" and is_right:
                is_right = not isinstance(value, bool) and value > 0
            if not is_right:
                raise UsageError(
                    f"settings: doors.e2b.{name}: {value!r:.80} cannot be", remedy=_KNOWN_OPTIONS
                )
        templates = {**_TEMPLATES, **given.get("templates", {})}
        base = given.get("base_image")
        images = {} if base is None else dict.fromkeys(_OF_BASE, base)
        return cls(
            templates,
            given.get("domain"),
            given.get("public_ports", False),
            {**images, **given.get("images", {})},
            given.get("uploads_mb", _UPLOADS_MB),
            given.get("url"),
            given.get("template_env", False),
        )


_KNOWN_OPTIONS = (
    "known: port, tenant, templates (a table of names), domain (a name), public_ports (true or "
    "false), base_image (an image), images (a table of names), uploads_mb (MiB), url (an address), "
    "template_env (true or false)"
)
_KINDS: dict[str, type] = {
    "templates": Mapping, "domain": str, "public_ports": bool, "base_image": str,
    "images": Mapping, "uploads_mb": int, "url": str, "template_env": bool,
}  # fmt: skip


class House:
    """The shared parts of one server's door."""

    def __init__(self, state: State, given: Mapping[str, Any]) -> None:
        """Raises `UsageError` for wrong options, or a file of the key that others may read."""
        self.state = state
        self.options = Options.of(given)
        secret = key_file.read(state.engine.state_dir / _KEY_FILE, "doors.e2b", may_make=True)
        self.tokens = SandboxTokens(secret, state.keys)
        self.clients = Clients()
        self.links = UploadLinks(secret, state.keys, state.engine.settings.node)
        self.uploads = Uploads(state.engine.state_dir / _UPLOADS, self.options.uploads_mb << 20)

    def shown(self, request: Request, sandbox: AsyncSandbox) -> dict[str, Any]:
        """Return a sandbox as the answer to its creation, with the tokens that open it."""
        facts = Facts.of(sandbox)
        return {
            "templateID": facts.template,
            "alias": facts.template,
            "sandboxID": sandbox.id,
            "clientID": CLIENT_ID,
            "envdVersion": ENVD_VERSION,
            **self.access(request, sandbox),
        }

    def access(self, request: Request, sandbox: AsyncSandbox) -> dict[str, Any]:
        """Return where a sandbox is reached, and the caller's tokens for it."""
        make = self.tokens.make
        tokens = {
            "envdAccessToken": make("daemon", sandbox.id, request.caller),
            "trafficAccessToken": make("traffic", sandbox.id, request.caller),
        }
        for token in tokens.values():
            self.state.observer.redactor.learn_ours(token, "tokens")
        return {**tokens, "domain": self.domain(request)}

    def address(self, request: Request) -> str:
        """Return the address of the door, by which the client of a request reaches it."""
        if self.options.url is not None:
            return self.options.url.rstrip("/")
        scheme, host = request.scope["scheme"], request.headers.get("host", "localhost")
        return f"{scheme}://{host}{request.scope.get('root_path', '')}"

    def domain(self, request: Request) -> str:
        """Return the name below which the ports of sandboxes have names."""
        if self.options.domain is not None:
            return self.options.domain
        host = request.headers.get("host", "localhost")
        name = name_of_host(host)
        if name.strip("[]") not in LOOPBACK:
            return host
        _, colon, port = host[len(name) :].partition(":")
        return f"localhost{colon}{port}"

    async def answer(
        self,
        request: Request,
        value: object,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Answer a client of the control plane."""
        warning = self.clients.headers(request.headers.get("user-agent", ""))
        await exchange.answer(request, value, status, {**warning, **(headers or {})})
