"""Network policy, secrets and opened TLS on the root of an image, as on a template's.

Nothing is copied: what `AGAIN` names runs on an image, by the image's own Python, on each runtime,
as root inside, and in the jail as a user as well. What is an image's alone follows: its own
programs trust the proxy, and one with something in the way of that is refused.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cellwall.linux.uid_ranges import IMAGE_BASE
from cellwall.model.errors import UsageError
from conftest import ground, require_command
from kit.attack.again import again
from kit.images.host_tree import APP, TOOLS, host_tree, image
from kit.outside.secrets import VALUE, Mirror
from kit.outside.world import World, world
from outside import test_attack_outside, test_network, test_secrets
from outside.test_secrets import said, secret_for

pytestmark = pytest.mark.root
open_sandbox = test_attack_outside.open_sandbox
mirror = test_secrets.mirror

PLACES = {"jail-root": 0, "jail-user": APP, "docker-root": 0, "gvisor-root": 0}

AGAIN: Mapping[Any, tuple[str, ...]] = {
    test_network: (
        "test_a_name_is_reached_by_a_program_that_knows_no_proxy",
        "test_a_one_shot_has_its_own_policy",
        "test_an_empty_list_allows_nothing",
        "test_loopback_stays_the_sandboxs_own",
        "test_the_host_is_not_reached_by_any_name",
        "test_what_no_rule_allows_is_refused_with_a_sentence",
    ),
    test_secrets: (
        "test_a_one_shot_has_its_own_secrets",
        "test_a_server_whose_certificate_is_wrong_gets_nothing",
        "test_another_host_gets_the_placeholder_and_it_is_on_record",
        "test_methods_and_paths_are_looked_at_in_tls",
        "test_the_value_reaches_its_host_in_header_query_and_basic",
        "test_tls_that_no_rule_opens_stays_as_it_is",
        "test_trust_is_there_from_the_start_or_not_at_all",
    ),
    test_attack_outside: (
        "test_a_redirect_is_a_connection_like_any_other",
        "test_an_alias_does_not_lead_to_the_host",
        "test_connect_reaches_allowed_ports_only",
        "test_no_spelling_of_the_hosts_address_reaches_it",
        "test_questions_carry_nothing_out",
        "test_rebinding_connects_to_what_was_checked",
        "test_special_addresses_are_refused_in_every_mode",
        "test_the_name_in_tls_must_be_the_allowed_one",
    ),
}
IN_THE_JAIL: Mapping[Any, tuple[str, ...]] = {
    test_secrets: (
        "test_a_new_proxy_has_a_new_authority_that_programs_trust",
        "test_no_process_and_no_file_of_the_sandbox_has_the_value",
    ),
    test_attack_outside: ("test_only_tcp_leaves",),
}


@pytest.fixture(scope="module")
def any_outside(request: pytest.FixtureRequest, image_tree: Path) -> Iterator[World]:
    """A world for each place, whose sandboxes are on the image."""
    wall = request.param.partition("-")[0]
    with world(wall, **ground(request, wall)) as made:
        made.image = image(image_tree, PLACES[request.param])
        yield made


@pytest.fixture(scope="module")
def outside(any_outside: World) -> World:
    """The same, for tests that ask for the jail's."""
    return any_outside


@pytest.fixture(scope="module")
def jail_mirror(mirror: Mirror) -> Mirror:
    """The same."""
    return mirror


for _module, _names in AGAIN.items():
    for _name in _names:
        globals()[_name] = again(getattr(_module, _name), (), list(PLACES), "any_outside")
for _module, _names in IN_THE_JAIL.items():
    for _name in _names:
        globals()[_name] = again(
            getattr(_module, _name), (), ["jail-root", "jail-user"], "any_outside", ("outside",)
        )


_PROGRAMS = ("curl", "git", "node")
"""Three that look for authorities in three ways, and are small enough for a tree."""


@pytest.fixture(scope="module")
def equipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image with programs of its own that speak TLS, and none of this machine's authorities."""
    found = [require_command(name) for name in _PROGRAMS]
    tree = host_tree(tmp_path_factory.mktemp("equipped"), (*TOOLS, *found))
    shutil.rmtree(tree / "etc/ssl", ignore_errors=True)
    return tree


@pytest.mark.parametrize("any_outside", ["jail-root", "docker-root", "gvisor-root"], indirect=True)
@pytest.mark.parametrize("name", _PROGRAMS)
def test_programs_of_an_image_trust_the_sandboxs_authority(
    any_outside: World, mirror: Mirror, equipped: Path, name: str
) -> None:
    port, before = mirror.port, len(mirror.requests)
    found = any_outside.run(
        test_secrets._PROGRAMS[name].replace("URL", f"https://web.test:{port}/for-{name}"),
        [f"web.test:{port}"],
        language="bash",
        image=image(equipped),
        secrets=[secret_for(port)],
        limits=test_secrets._ROOM,
        timeout=60,
    )
    asked = mirror.requests[before:]
    assert asked, found
    assert f"/for-{name}" in asked[0][1]
    assert name == "git" or asked[0][2]["X-Key"] == VALUE
    assert VALUE not in found


def _with(tree: Path, place: Path, obstacle: str) -> Path:
    """Return a copy of a tree's names, with something where the authorities' folder is made."""
    made = place / "tree"
    shutil.copytree(tree, made, symlinks=True, copy_function=os.link)
    for folder, names, _ in os.walk(made):
        for name in (".", *names):
            os.lchown(os.path.join(folder, name), IMAGE_BASE, IMAGE_BASE)
    planted = made / "tmp/.cellwall-authorities"
    if obstacle == "closed":
        (made / "tmp").chmod(0o755)
    elif obstacle == "link":
        planted.symlink_to("/etc")
        os.lchown(planted, IMAGE_BASE, IMAGE_BASE)
    elif obstacle == "file":
        planted.write_text("an image's own")
        os.chown(planted, IMAGE_BASE, IMAGE_BASE)
    return made


@pytest.mark.parametrize("any_outside", ["jail-user"], indirect=True)
@pytest.mark.parametrize("obstacle", ["nothing", "closed", "link", "file"])
def test_image_without_a_place_for_the_authorities_is_refused(
    any_outside: World, mirror: Mirror, image_tree: Path, tmp_path: Path, obstacle: str
) -> None:
    """Nothing in the way is the control."""
    root = image(_with(image_tree, tmp_path, obstacle), APP)
    port = mirror.port
    given: dict[str, Any] = {"secrets": [secret_for(port)], "image": root}
    if obstacle == "nothing":
        with any_outside.sandbox([f"web.test:{port}"], **given) as sandbox:
            assert said(sandbox, f"ask('https://web.test:{port}/')")[0].startswith("200")
        return
    with pytest.raises(UsageError, match="certificate has no place") as caught:
        any_outside.sandbox([f"web.test:{port}"], **given)
    assert "/tmp" in str(caught.value.remedy)


@pytest.mark.parametrize("any_outside", ["jail-root"], indirect=True)
def test_images_own_variables_for_authorities_do_not_hold(
    any_outside: World, mirror: Mirror, image_tree: Path
) -> None:
    """An image that trusts its own file alone would find every opened connection broken."""
    root = image(image_tree)
    root = replace(root, environment={**root.environment, "SSL_CERT_FILE": "/nowhere"})
    port = mirror.port
    rules, given = [f"web.test:{port}"], {"secrets": [secret_for(port)]}
    with any_outside.sandbox(rules, image=root, **given) as sandbox:
        assert said(sandbox, f"ask('https://web.test:{port}/')")[0].startswith("200")
