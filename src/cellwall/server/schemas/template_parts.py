"""From the body of a template to what the builder is asked: a Dockerfile, a context, limits.

Pure. The invariant: a caller's value is one word of the Dockerfile that is made of it, whatever
characters it has (`images.steps`).
"""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

from cellwall.engine.images import builder
from cellwall.engine.images.builder import BuildRequest
from cellwall.images import dockerfile
from cellwall.images.steps import ImageSteps
from cellwall.model.errors import UsageError
from cellwall.server.schemas.decode import clipped_limits, content
from cellwall.server.schemas.network import value_of

if TYPE_CHECKING:
    from cellwall.model.limits import Limits
    from cellwall.server.schemas.templates import TemplateBody, TemplatePackages


def request_of(body: TemplateBody, most: Limits) -> tuple[BuildRequest, dict[str, float]]:
    """Return the builder's request, and the limits that were asked for above `most`.

    Raises `UsageError`, of which `DockerfileInvalid` names the line.
    """
    if body.preload:
        raise UsageError(
            "preload: a template that you build imports nothing ahead",
            remedy="leave it out; templates of the operator have a preload list",
        )
    text = body.dockerfile if body.dockerfile is not None else _dockerfile(body)
    source = text.encode()
    dockerfile.parse(source)
    limits, clipped = clipped_limits(body.limits, builder.LIMITS, most)
    request = BuildRequest(
        source,
        arguments=body.arguments,
        target=body.target,
        network=value_of(body.network),
        limits=limits,
        keeps_env=body.keeps_env,
    )
    return request, clipped


def _dockerfile(body: TemplateBody) -> str:
    """Return the Dockerfile of what is added to an image, in an order that caches well."""
    steps = ImageSteps(body.from_image or "").env(**body.env)
    if body.packages is not None:
        steps = _with_packages(steps, body.packages, has_network=body.network != "none")
    for number, path in enumerate(body.files):
        if not path.startswith("/") or path.endswith("/"):
            raise UsageError(
                f"files: {path[:80]!r} is no path of a file in the template",
                remedy="begin it with `/`",
            )
        steps = steps.copy(_file_name(number), path)
    for command in body.commands:
        steps = steps.run(command)
    steps = steps if body.working_dir is None else steps.workdir(body.working_dir)
    return str(steps if body.user is None else steps.user(body.user))


def _with_packages(
    steps: ImageSteps, packages: TemplatePackages, *, has_network: bool
) -> ImageSteps:
    for names, install in (
        (packages.apt, ImageSteps.apt_install),
        (packages.npm, ImageSteps.npm_install),
        (packages.python, ImageSteps.pip_install),
    ):
        if names and not has_network:
            raise UsageError(
                "packages: the steps have no network to fetch them from",
                remedy="give a `network` that the operator permits, such as `packages`",
            )
        steps = install(steps, *names) if names else steps
    return steps


def tar_of(body: TemplateBody) -> bytes | None:
    """Return the files of a body as a tar; None if there are none."""
    if not body.files:
        return None
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for number, (path, given) in enumerate(body.files.items()):
            data = content(given, f"files.{path[:40]}")
            member = tarfile.TarInfo(path if body.dockerfile is not None else _file_name(number))
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def _file_name(number: int) -> str:
    """Return the name in the context of a file that is given by its path in the template."""
    return f"file-{number}"
