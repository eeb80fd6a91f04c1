"""Users of a sandbox on an image, by the unmodified E2B client: who owns what is made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2b import Sandbox
from e2b.exceptions import AuthenticationException

from kit.images import registry
from kit.images.archives import layer, small_root
from kit.server.e2b_doors import e2b_server

pytestmark = pytest.mark.root
IMAGE = "team/app:1"


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    """A sandbox on an image with the user `app`, whose own user is root."""
    with registry.running() as stocked:
        stocked.add(IMAGE, [layer(small_root())], Env=["PATH=/bin:/usr/bin"])
        url = f"http://{stocked.host}"
        more = f"[[engine.image_registries]]\nregistry = '{stocked.host}'\nurl = '{url}'\n"
        with e2b_server(more, images=[f"{stocked.host}/team/*"]) as e2b:
            body = {"image": stocked.name(IMAGE), "user": "root"}
            made = e2b.server.client().post("/sandboxes", json=body)
            assert made.status_code == 201, made.text
            yield Sandbox.connect(made.json()["id"], **e2b.sdk())


def _owners(box: Sandbox, *paths: str) -> list[str]:
    return [box.files.get_info(path, user="root").owner for path in paths]


def test_a_directory_and_its_parents_belong_to_who_made_them(box: Sandbox) -> None:
    box.files.make_dir("made/by/app", user="app")
    made = [f"/home/app/{path}" for path in ("made", "made/by", "made/by/app")]
    assert _owners(box, *made) == ["app"] * 3
    box.files.make_dir("made/by/root", user="root")
    assert _owners(box, "/root/made", "/root/made/by/root", "/home", "/") == ["root"] * 4


def test_a_file_and_its_parents_belong_to_who_wrote_it(box: Sandbox) -> None:
    box.files.write("written/by/app", "x", user="app")
    assert _owners(box, "/home/app/written", "/home/app/written/by/app") == ["app"] * 2


def test_metadata_of_a_file_of_another_user_is_kept(box: Sandbox) -> None:
    box.files.write("with", "x", user="app", metadata={"of": "app"})
    renamed = box.files.rename("with", "renamed", user="app")
    assert renamed.metadata == box.files.get_info("/home/app/renamed").metadata == {"of": "app"}
    assert box.files.get_info("/etc/passwd").metadata is None


def test_the_parents_of_what_is_moved_belong_to_who_moved_it(box: Sandbox) -> None:
    box.files.write("old", "x", user="app")
    box.files.rename("old", "moved/to/new", user="app")
    moved = [f"/home/app/{path}" for path in ("moved", "moved/to", "moved/to/new")]
    assert _owners(box, *moved) == ["app"] * 3


def test_a_user_that_the_image_does_not_have_is_refused(box: Sandbox) -> None:
    with pytest.raises(AuthenticationException, match="no such user"):
        box.files.make_dir("x", user="stranger")
