"""The unmodified SDK of E2B builds templates through two gateways over three nodes, and uses them.

Each call goes to the next gateway: what one has begun the other goes on with.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2b import Sandbox, Template
from e2b.exceptions import BuildException
from e2b.template.types import BuildInfo, TemplateBuildStatusResponse

from cellwall.model.ids import node_of
from cellwall.server.auth.keys import in_e2b_form
from kit.cluster.directories import directory
from kit.cluster.processes import Cluster, cluster
from kit.images import registry
from kit.images.archives import layer
from kit.postgres_server import Postgres
from kit.server.e2b_templates import IMAGE, root
from kit.servers import MANAGER
from kit.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]


@dataclass
class Shop:
    """The cluster, and the addresses of its doors in turns."""

    made: Cluster
    image: str
    turns: Iterator[int] = field(default_factory=lambda: itertools.cycle((0, 1)))

    def sdk(self) -> dict[str, Any]:
        at = f"{self.made.address(next(self.turns))}/e2b"
        return {"api_url": at, "sandbox_url": at, "api_key": in_e2b_form(MANAGER)}


@pytest.fixture(scope="module")
def shop(postgres: Postgres) -> Iterator[Shop]:
    os.environ.setdefault("NO_PROXY", "127.0.0.1,localhost")
    with registry.running() as stocked:
        stocked.add(IMAGE, [layer(root())], Env=["PATH=/usr/local/bin:/usr/bin:/bin"])
        image = stocked.name(IMAGE)
        more = (
            f"[[engine.image_registries]]\nregistry = '{stocked.host}'\n"
            f"url = 'http://{stocked.host}'\n[doors.e2b]\nbase_image = '{image}'\n"
        )
        tiers = "[tiers.small]\nbuilds = 4\n[tenants]\nmanager = 'small'\n"
        with cluster(0, 0, directory=directory(postgres), tiers=tiers) as made:
            given: dict[str, Any] = {"images": [f"{stocked.host}/team/*"], "templates_mb": 4000}
            for number in range(3):
                made.start_node(f"node-{number}", more=more, **given)
            for number in range(2):
                made.start_gateway(more="[doors.e2b]\n")
                made.wait_ready(3, number)
            yield Shop(made, image)


def _fresh() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


def _said(shop: Shop, template: str, command: str) -> tuple[str, str]:
    """Return what a command says in a sandbox of a template, and the sandbox's node."""
    with Sandbox.create(template, timeout=60, **shop.sdk()) as sandbox:
        return str(sandbox.commands.run(command).stdout), node_of(sandbox.sandbox_id)


def _ended(shop: Shop, build: BuildInfo) -> TemplateBuildStatusResponse:
    """Return what the gateways in turns say of a build once it has ended."""
    found: list[TemplateBuildStatusResponse] = []

    def is_over() -> bool:
        found.append(Template.get_build_status(build, **shop.sdk()))
        return found[-1].status.value in ("ready", "error")

    for _ in range(5):  # on a busy machine a build takes longer than any other fact
        with contextlib.suppress(AssertionError):
            wait_until(is_over, "the end of a build")
            break
    return found[-1]


def test_template_is_built_and_used_at_whichever_gateway(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "said.txt").write_text("of a file")
    steps = (
        Template(file_context_path=tmp_path)
        .from_image(shop.image)
        .copy("said.txt", "/srv/said.txt")
        .run_cmd("echo built > /home/user/built.txt")
    )
    name = _fresh()
    build = Template.build_in_background(steps, name, **shop.sdk())
    ended = _ended(shop, build)
    assert ended.status.value == "ready", ended
    assert any("prepared" in str(each) for each in ended.log_entries), ended
    assert Template.exists(name, **shop.sdk())
    found = [_said(shop, name, "cat /srv/said.txt /home/user/built.txt") for _ in range(4)]
    assert {text for text, _ in found} == {"of a filebuilt\n"}
    assert len({node for _, node in found}) == 1
    # The next build of the name lies with the first.
    Template.build(Template().from_template(name).run_cmd("true"), f"{name}:v2", **shop.sdk())
    again = _said(shop, f"{name}:v2", "cat /home/user/built.txt")
    assert again == ("built\n", found[0][1])


def test_templates_are_listed_once_and_tags_go_with_their_name(shop: Shop) -> None:
    name = _fresh()
    Template.build(Template().from_image(shop.image).run_cmd("true"), name, **shop.sdk())
    at = shop.sdk()
    with httpx.Client(headers={"x-api-key": at["api_key"]}) as client:
        for _ in range(2):
            shown = client.get(f"{shop.sdk()['api_url']}/templates").json()
            names = [each["templateID"] for each in shown]
            assert names.count(name) == 1, names
            assert len(names) == len(set(names))
    Template.assign_tags(f"{name}:default", ["prod"], **shop.sdk())
    tags = {each.tag for each in Template.get_tags(name, **shop.sdk())}
    assert {"default", "prod"} <= tags
    assert _said(shop, f"{name}:prod", "echo here")[0] == "here\n"
    Template.remove_tags(name, "prod", **shop.sdk())
    assert "prod" not in {each.tag for each in Template.get_tags(name, **shop.sdk())}


def test_sandbox_of_a_template_that_there_is_not_is_refused_as_by_a_server(shop: Shop) -> None:
    assert _said(shop, "base", "echo here")[0] == "here\n"  # the operator's, on every node
    with pytest.raises(Exception, match="never-built"):
        Sandbox.create("never-built", timeout=60, **shop.sdk())


def test_sandbox_of_a_snapshot_is_made_where_it_lies(shop: Shop) -> None:
    for _ in range(3):
        with Sandbox.create("base", timeout=60, **shop.sdk()) as sandbox:
            sandbox.files.write("/home/user/a.txt", "kept")
            kept = sandbox.create_snapshot(**shop.sdk()).snapshot_id
            with Sandbox.create(kept, timeout=60, **shop.sdk()) as copy:
                assert node_of(copy.sandbox_id) == node_of(sandbox.sandbox_id)
                assert copy.files.read("/home/user/a.txt") == "kept"


def test_build_that_fails_says_why(shop: Shop) -> None:
    steps = Template().from_image(shop.image).run_cmd("echo broken; exit 7")
    with pytest.raises(BuildException, match="7"):
        Template.build(steps, _fresh(), **shop.sdk())
