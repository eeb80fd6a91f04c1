"""Images of an ordinary user: one range of ids owns the files and is all sandboxes' on images.

The programs are run by a throw-away user with subordinate ids. Witnesses are outside: the tree on
disk and the user's home, which the tests read as the host's root.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import require_capability
from kit.attack.ranged import COUNT, FIRST, RangedUser, why_not
from kit.images import archives
from kit.images.archives import config_of, directory, layer, link, member, python_root

pytestmark = [pytest.mark.attack, pytest.mark.root]

_BEGIN = """
import asyncio, json, os, sys
from cellwall import Engine, EngineSettings
from cellwall.engine.images.builder import BuildRequest, build
from cellwall.model.errors import CellwallError
LIMITS = {"disk_mb": 16, "inodes": 500}

async def main(image, *more):
    engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
    try:
        await job(engine, image, *more)
    finally:
        await engine.aclose()
"""
_END = "\nasyncio.run(main(*sys.argv[1:]))\n"
_USE = """
ROOT = '''
import os
os.chown("/etc/passwd", 5, 65534)
os.mkdir("/data")
found = [os.stat(path) for path in ("/etc/passwd", "/opt/of-seven", "/opt/of-nobody")]
try:
    with open("/data/large", "wb") as file:
        for _ in range(32):
            file.write(bytes(1 << 20))
except OSError as error:
    print(error.errno, end=" ")
print(os.getuid(), *(each.st_uid for each in found), *(each.st_gid for each in found))
'''

async def job(engine, image):
    async with await engine.create_sandbox(image=image, user="root", limits=LIMITS) as sandbox:
        first = await sandbox.run(ROOT)
        other = await engine.run("import os; print(os.path.exists('/data'), os.getuid())",
                                 image=image, user="65534:65534", limits=LIMITS)
        made = sandbox.live.runtime_sandbox
        posture, shared = made.posture, os.stat(f"/proc/{made.pid}/root/dev").st_uid
    stored, = engine.images.images()
    print(json.dumps({"first": [first.stdout, first.stderr], "other": other.stdout,
                      "uid": posture["Uid"], "id": stored.digest, "shared": shared,
                      "isolation": first.outcome.isolation.as_json()}))
"""
_REACH = """
TRY = '''
import os
points = [line.split()[4] for line in open("/proc/self/mountinfo")]
for uid in (65534, 0):
    os.setresuid(uid, uid, 0)
    made = []
    for point in [*points, "/proc/sys/kernel", "/dev/pts"]:
        try:
            os.mkdir(f"{point}/made-{uid}")
            made.append(point)
        except OSError:
            pass
    for point in points:
        try:
            os.chmod(point, 0o777)
            made.append("mode:" + point)
        except OSError:
            pass
    print(uid, *sorted(set(made)))
'''

async def job(engine, image):
    tried = await engine.run(TRY, image=image, user="root", limits=LIMITS)
    after = await engine.run("import os; print(sorted(os.listdir('/')), os.listdir('/dev'))",
                             image=image, user="root", limits=LIMITS)
    print(json.dumps({"tried": tried.stdout.splitlines(), "after": after.stdout}))
"""
_BUILD = """
async def job(engine, image):

    held = await engine.images.root(image)
    engine.images.let_go(held.digest)
    run = "echo made > /opt/made && rm /opt/of-seven && chown 9:9 /opt/made"
    source = f"FROM {held.digest}\\nRUN {run}\\n"
    made = await build(engine, BuildRequest(source.encode(), name="made"))
    ran = await engine.run("import os; print(os.listdir('/opt'), os.stat('/opt/made').st_uid)",
                           image="made", user="root", limits=LIMITS)
    shared = made.size_bytes - made.own_bytes
    print(json.dumps({"ran": ran.stdout, "shared": shared > 0}))
"""
_REMOVE = """
async def job(engine, image, *more):
    for each in engine.images.images():
        await engine.images.remove(each.digest)
    print(json.dumps({"left": len(engine.images.images())}))
"""
_SWEEP = """
async def job(engine, image):
    report = await engine.sweep()
    print(json.dumps({**report.removed, "kept": report.kept}))
"""
_REFUSED = """
async def job(engine, image, user="root"):
    try:
        await engine.run("print(1)", image=image, user=user, limits=LIMITS)
    except CellwallError as error:
        print(json.dumps({"message": error.message, "remedy": error.remedy}))
    else:
        print(json.dumps({"message": "it ran", "remedy": ""}))
"""


@pytest.fixture(scope="module")
def owner() -> Iterator[RangedUser]:
    """A user whose templates are built once for all tests."""
    require_capability("subordinate ids", not why_not(), why_not())
    made = RangedUser()
    with made:
        yield made
        assert made.leftovers() == set()


@pytest.fixture
def user(owner: RangedUser) -> Iterator[RangedUser]:
    lists = owner.lists
    yield owner
    owner.lists = lists
    assert _said(owner, _REMOVE, "") == {"left": 0}
    assert not list(_images(owner).glob("*/tree*"))


def _members() -> list[Any]:
    return [
        *python_root(),
        directory("opt"),
        member("opt/of-seven", b"seven", uid=7, gid=8, mode=0o600),
        member("opt/of-nobody", b"nobody", uid=65_534, gid=65_534),
        member("opt/set-uid", b"#!/bin/sh\n", mode=0o4755),
    ]


def _image(user: RangedUser, members: list[Any] | None = None) -> str:
    whole = layer(_members() if members is None else members)
    path = archives.docker_archive(user.home / "image.tar", [whole], config_of([whole]))
    os.chown(path, user.uid, user.gid)
    return str(path)


def _said(user: RangedUser, job: str, *arguments: str) -> Any:
    done = user.run_ranged(_BEGIN + job + _END, *arguments)
    assert done.code == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _images(user: RangedUser) -> Path:
    return user.home / "state" / "images"


def _state_of(tree: Path) -> dict[str, tuple[int, int, int, str]]:
    """Owner, group, mode and content of everything below a directory, as the host has it."""
    found = {}
    for path in sorted(tree.rglob("*")):
        said = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(said.st_mode) else b""
        digest = hashlib.sha256(content).hexdigest()
        found[str(path)] = (said.st_uid, said.st_gid, said.st_mode, digest)
    return found


def test_root_of_an_image_has_its_ids_and_limits(user: RangedUser) -> None:
    said = _said(user, _USE, _image(user))
    assert said["first"] == ["28 0 5 7 65534 65534 8 65534\n", ""]
    assert said["other"] == "False 65534\n"
    assert said["uid"].split() == [str(FIRST)] * 4
    assert said["isolation"]["ids"] == "shared"
    assert said["isolation"]["limits"]["disk_mb"] == "hard"
    tree = _images(user) / said["id"].removeprefix("sha256:") / "tree"
    owners = {name: (tree / "opt" / name).lstat() for name in ("of-seven", "of-nobody", "set-uid")}
    assert (owners["of-seven"].st_uid - FIRST, owners["of-seven"].st_gid - FIRST) == (7, 8)
    last = COUNT - 8 * 2048 - 1  # behind those below it, before those of fork-servers
    assert owners["of-nobody"].st_uid - FIRST == last
    assert said["shared"] > FIRST + last  # no sandbox on an image maps it
    # What is set-uid on disk is so for an id that no account has, below what only the user enters.
    assert owners["set-uid"].st_uid == FIRST
    assert stat.S_IMODE(tree.parent.stat().st_mode) == 0o700


def test_root_changes_nothing_that_sandboxes_share(user: RangedUser) -> None:
    """It tries every mount. The control: its own root and work area it can change."""
    image = _image(user)
    _said(user, _USE, image)
    (tree,) = _images(user).glob("*/tree")
    before = _state_of(tree)
    said = _said(user, _REACH, image)
    nobody, root = (set(line.split()[1:]) for line in said["tried"])
    assert nobody == {"/dev/shm"}
    own = {"/", "/dev/shm", "mode:/", "mode:/dev/shm", "mode:/dev/pts"}
    assert root == own
    assert "made" not in said["after"]
    assert _state_of(tree) == before
    assert len(before) > 100


def test_images_are_built_and_removed(user: RangedUser) -> None:
    """One that is built shares files with that below it; nothing of either stays."""
    image = _image(user)
    said = _said(user, _BUILD, image)
    names, _, owner = said["ran"].rpartition(" ")
    assert "made" in names
    assert "of-nobody" in names
    assert "of-seven" not in names
    assert (owner, said["shared"]) == ("9\n", True)
    assert len(list(_images(user).glob("*/tree"))) == 2


def test_layers_lead_nowhere_and_neither_does_removal(user: RangedUser) -> None:
    """The control: the same link leads to the user's file outside."""
    mine = user.home / "mine"
    mine.mkdir()
    (mine / "kept").write_text("mine")
    for path in (mine, mine / "kept"):
        os.chown(path, user.uid, user.gid)
    hostile = [
        *_members(),
        link("opt/out", str(mine)),
        link("opt/kept", str(mine / "kept")),
        member("opt/out/made", b"of the image"),
    ]
    said = _said(user, _REFUSED, _image(user, hostile))
    (tree,) = _images(user).glob("*/tree")
    assert said["message"] == "it ran"
    assert os.readlink(tree / "opt" / "out") == str(mine)
    assert (tree / "opt" / "kept").read_text() == "mine"
    assert (tree / str(mine)[1:] / "made").read_bytes() == b"of the image"
    assert _said(user, _REMOVE, "") == {"left": 0}
    assert [path.name for path in mine.iterdir()] == ["kept"]
    assert (mine / "kept").read_text() == "mine"


def test_what_a_killed_engine_left_is_swept(user: RangedUser) -> None:
    image = _image(user)
    _said(user, _USE, image)
    (whole,) = _images(user).glob("*/image.json")
    whole.unlink()  # as if it had been killed before that was written
    lists, user.lists = user.lists, f"{user.name}:{FIRST}:4096\n"
    (kept,) = _said(user, _SWEEP, image)["kept"]  # without its ids the user cannot remove it
    assert kept.startswith("unfinished image ")
    assert "an ordinary user needs 65536 ids" in kept
    user.lists = lists
    swept = _said(user, _SWEEP, image)
    assert (swept["unfinished images"], swept["kept"]) == (1, [])
    assert not list(_images(user).glob("*/tree"))


def test_ids_that_are_not_mapped_are_refused_by_name(user: RangedUser) -> None:
    image = _image(user)
    said = _said(user, _REFUSED, image, "60000")
    assert "60000" in said["message"]
    assert "subordinate ids" in said["remedy"]
    foreign = [*_members(), member("opt/foreign", b"", uid=60_000)]
    said = _said(user, _REFUSED, _image(user, foreign))
    assert "'opt/foreign' belongs to id 60000" in said["message"].replace("'/opt", "'opt")
    assert "subordinate ids" in said["remedy"]
    assert len(list(_images(user).glob("*/tree"))) == 1


def test_image_of_other_ids_is_refused(user: RangedUser) -> None:
    """Inside, all its files would belong to the overflow id."""
    image = _image(user)
    assert _said(user, _REFUSED, image)["message"] == "it ran"
    user.lists = f"{user.name}:{FIRST + COUNT}:{COUNT}\n"
    said = _said(user, _REFUSED, image)
    assert "belong to ids that are not this user's" in said["message"]
    assert "root" in said["remedy"]


def test_user_with_few_ids_is_told_how_to_have_more(user: RangedUser) -> None:
    user.lists = f"{user.name}:{FIRST}:4096\n"
    said = _said(user, _REFUSED, _image(user))
    assert "4096 subordinate ids are too few" in said["message"]
    assert "--add-subuids" in said["remedy"]
