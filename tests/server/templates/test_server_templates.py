"""Templates that tenants build over HTTP: built, followed, used, cancelled, counted, kept."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kit import waiting
from kit.images import archives, registry
from kit.images.archives import layer, small_root
from kit.images.registry import ImageRegistry
from kit.servers import (
    ADMIN,
    ALICE,
    MANAGER,
    Server,
    configuration,
    error_of,
    lines_of,
    running,
    start,
)

pytestmark = pytest.mark.root
TOOLS = ("rm", "mkdir", "sleep", "head")


@pytest.fixture(scope="module")
def stocked() -> Iterator[ImageRegistry]:
    tools = [
        archives.member(f"bin/{name}", Path(f"/bin/{name}").read_bytes(), mode=0o755)
        if Path(f"/bin/{name}").is_file()
        else archives.member(f"bin/{name}", Path(f"/usr/bin/{name}").read_bytes(), mode=0o755)
        for name in TOOLS
    ]
    with registry.running() as made:
        made.add("team/base:1", [layer([*small_root(), *tools])], Env=["PATH=/bin:/usr/bin"])
        made.add("team/python:1", [layer(archives.python_root())])
        made.add("other/base:1", [layer(small_root())])
        yield made


def words(stocked: ImageRegistry) -> str:
    return f"""
[engine]
{stocked.setting(credentials="user:word@")}
[tiers.small]
builds = 2
[tenants]
admin = "small"
"""


@pytest.fixture(scope="module")
def door(stocked: ImageRegistry) -> Iterator[Server]:
    """A server whose operator permits the team's images, and templates made of them."""
    names = [f"{stocked.host}/team/*"]
    with running(words(stocked), images=names, templates_mb=2000, most_builds=3) as made:
        yield made


def built(client: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = client.post("/templates", json={"wait": 40, **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def said(client: httpx.Client, line: str, **body: Any) -> str:
    made = client.post("/sandboxes", json=body)
    assert made.status_code == 201, made.text
    place = f"/sandboxes/{made.json()['id']}"
    try:
        answer = client.post(
            f"{place}/commands", json={"command": line}, headers={"Accept": "application/json"}
        )
        return str(answer.json()["stdout"])
    finally:
        assert client.delete(place).status_code == 200


def test_template_from_a_dockerfile_is_built_and_used(door: Server, stocked: ImageRegistry) -> None:
    client, name = door.client(MANAGER), stocked.name("team/base:1")
    text = f"FROM {name}\nENV WORD=said\nRUN echo $WORD > /word\nCOPY note /note\n"
    made = built(client, name="task:1", dockerfile=text, files={"note": "from the context\n"})
    assert (made["status"], made["error"]) == ("built", None), made
    assert made["template"]["name"] == "task:1"
    assert [each["type"] for each in made["log"]][-1] == "done"
    assert said(client, "cat /word /note", template="task:1") == "said\nfrom the context\n"
    box = client.post("/sandboxes", json={"template": "task:1"}).json()
    assert (box["template"], box["image"]) == ("task:1", made["template"]["image"])
    busy = client.delete("/templates/task:1")
    assert (busy.status_code, error_of(busy)["code"]) == (409, "conflict")
    client.delete(f"/sandboxes/{box['id']}")
    assert [each["name"] for each in client.get("/templates").json()["own"]] == ["task:1"]
    assert client.get("/templates/task:1").json()["image"] == box["image"]
    assert client.delete("/templates/task:1").json()["message"] == "removed"
    assert client.get("/templates/task:1").status_code == 404
    assert client.post("/sandboxes", json={"template": "task:1"}).status_code == 404


def test_programs_run_on_a_template_also_in_the_background(
    door: Server, stocked: ImageRegistry
) -> None:
    client, base = door.client(MANAGER), stocked.name("team/python:1")
    made = built(client, name="py", from_image=base, files={"/opt/word": "said"})
    assert made["status"] == "built", made
    body = {"code": "print(open('/opt/word').read())", "template": "py"}
    done = client.post("/execute", json=body)
    assert (done.status_code, done.json()["stdout"]) == (200, "said\n"), done.text
    assert done.json()["template"] == "py", done.text
    batch = client.post("/executions/batch", json={"executions": [body]})
    assert "said" in batch.text
    begun = client.post("/execute", json={**body, "background": True}).json()
    place = f"/executions/{begun['execution_id']}"
    waiting.wait_until(
        lambda: client.get(place, params={"wait": 5}).json().get("stdout") == "said\n",
        "the execution in the background ends",
    )
    both = client.post("/execute", json={**body, "image": base})
    assert both.status_code == 400
    waiting.wait_until(
        lambda: client.delete("/templates/py").status_code == 200, "no sandbox is on it"
    )


def test_template_from_an_image_and_what_is_added(door: Server, stocked: ImageRegistry) -> None:
    client = door.client(MANAGER)
    made = built(
        client,
        name="added",
        from_image=stocked.name("team/base:1"),
        env={"WORD": 'a "word" of $HOME'},
        files={"/data/$x y": "content\n", "/data/b": {"content_b64": "YmluYXJ5Cg=="}},
        commands=["cat /data/* > /all", 'echo "$WORD" >> /all'],
        working_dir="/data",
    )
    assert made["status"] == "built", made
    assert made["name"] == "added:latest"
    for name in ("added", "added:latest"):
        assert said(client, "cat /all", template=name) == 'content\nbinary\na "word" of $HOME\n'
    again = built(client, name="below", dockerfile="FROM added\nRUN echo more >> /all\n")
    assert again["status"] == "built", again
    assert said(client, "cat /all", template="below").endswith("more\n")
    for name in ("below", "added"):
        assert client.delete(f"/templates/{name}").status_code == 200


def test_context_comes_as_a_tar_and_its_log_is_followed(
    door: Server, stocked: ImageRegistry
) -> None:
    client = door.client(MANAGER)
    text = f"FROM {stocked.name('team/base:1')}\nCOPY . /here\nRUN cat /here/a/b && echo two\n"
    answer = uploaded(client, {"name": "up", "dockerfile": text}, tar_of({"a/b": b"one\n"}))
    assert answer.status_code == 202, answer.text
    place = answer.headers["location"]
    stream = client.get(f"{place}/events", headers={"Accept": "application/x-ndjson"})
    events = lines_of(stream)
    assert [each["seq"] for each in events] == list(range(1, len(events) + 1))
    output = "".join(each["text"] for each in events if each["type"] == "output")
    assert output == "one\ntwo\n"
    assert events[-1]["build"]["status"] == "built", events[-1]
    late = client.get(f"{place}/events", params={"after": len(events) - 2})
    assert [each["type"] for each in lines_of(late)] == ["done", "end"]
    cached = built(client, name="up:2", dockerfile=text.replace("COPY . /here\n", ""))
    assert cached["status"] == "failed"
    client.delete("/templates/up")


def test_further_tags_mean_the_same_image(door: Server, stocked: ImageRegistry) -> None:
    with door.client(ADMIN) as client:
        base = stocked.name("team/base:1")
        made = built(client, name="tags:1", tags=["stable", "1.0", "1"], from_image=base)
        assert made["status"] == "built", made["error"]
        own = {each["name"]: each["image"] for each in client.get("/templates").json()["own"]}
        names = ("tags:1", "tags:stable", "tags:1.0")
        assert {own[name] for name in names} == {made["template"]["image"]}
        again = built(client, name="tags:next", dockerfile="FROM tags:stable\n")
        assert again["template"]["image"] == made["template"]["image"]
        for name in (*names, "tags:next"):
            assert client.delete(f"/templates/{name}").status_code == 200
        refused = client.post("/templates", json={"name": "t", "tags": ["a b"], "from_image": base})
        assert (refused.status_code, error_of(refused)["code"]) == (400, "usage")


def test_failing_step_says_step_line_and_exit_code(door: Server, stocked: ImageRegistry) -> None:
    client = door.client(MANAGER)
    text = f"FROM {stocked.name('team/base:1')}\nRUN true\nRUN echo why >&2; exit 7\n"
    made = built(client, name="bad", dockerfile=text)
    error = made["error"]
    assert made["status"] == "failed"
    assert (error["code"], error["line"], error["exit_code"]) == ("build_failed", 3, 7)
    assert error["step"].startswith("RUN echo why")
    assert "why" in error["output"]
    assert client.get("/templates/bad").status_code == 404
    for wrong, line in (("FROM x\nRUN <<E\n", 2), ("FROM\n", 1), ("", 1), ("FROM x\nNONE y\n", 2)):
        refused = client.post("/templates", json={"name": "bad", "dockerfile": wrong})
        assert refused.status_code == 400, refused.text
        assert f"line {line}" in error_of(refused)["message"]


def test_cancelled_build_ends_for_good(door: Server, stocked: ImageRegistry) -> None:
    client = door.client(MANAGER)
    text = f"FROM {stocked.name('team/base:1')}\nRUN echo begun; sleep 987\n"
    begun = client.post("/templates", json={"name": "slow", "dockerfile": text})
    assert begun.status_code == 202, begun.text
    place = begun.headers["location"]
    waiting.wait_until(
        lambda: any(each["text"] == "begun\n" for each in client.get(place).json()["log"]),
        "the step runs",
    )
    assert programs("987")
    full = client.post("/templates", json={"name": "more", "dockerfile": text})
    assert (full.status_code, error_of(full)["quota"]) == (429, "builds")
    assert client.delete(place).json()["message"] == "cancelled"
    assert client.get(place).json()["status"] == "cancelled"
    assert client.get(place).json()["error"]["code"] == "cancelled"
    waiting.wait_until(lambda: not programs("987"), "its program is gone")
    assert client.get("/templates/slow").status_code == 404
    assert client.get("/sandboxes", params={"state": "running"}).json()["sandboxes"] == []
    assert client.get("/quota").json()["use"]["sandboxes"] == 0
    assert client.delete(place).json()["message"] == "it had ended"


def programs(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if line[:2] == [b"sleep", word.encode()]:
            found.append(path.parent.name)
    return found


def test_tenants_do_not_see_each_others_templates(door: Server, stocked: ImageRegistry) -> None:
    """The control is the owner, who has it all the time."""
    owner, other = door.client(MANAGER), door.client(ADMIN)
    name = stocked.name("team/base:1")
    text = f"FROM {name}\nRUN echo mine > /mine\n"
    made = built(owner, name="mine", dockerfile=text)
    place, image = f"/templates/builds/{made['id']}", made["template"]["image"]
    assert other.get("/templates").json()["own"] == []
    unknown = error_of(other.get("/templates/none"))["message"]
    assert error_of(other.get("/templates/mine"))["message"] == unknown.replace("none:", "mine:")
    for answer in (
        other.get("/templates/mine"),
        other.delete("/templates/mine"),
        other.get(place),
        other.get(f"{place}/events"),
        other.delete(place),
        other.post("/sandboxes", json={"template": "mine"}),
        other.post("/execute", json={"code": "1", "template": "mine"}),
    ):
        assert answer.status_code == 404, answer.text
    for body in ({"image": image}, {"image": "mine"}):
        assert other.post("/sandboxes", json=body).status_code == 400
    stolen = built(other, name="stolen", dockerfile="FROM mine\n")
    assert stolen["status"] == "failed"
    same = built(other, name="mine", dockerfile=text)
    assert (same["status"], same["cached"]) == ("built", 0)
    assert other.delete("/templates/mine").status_code == 200
    assert said(owner, "cat /mine", template="mine") == "mine\n"
    assert built(owner, name="mine:2", dockerfile=text)["cached"] == 1
    for each in ("mine", "mine:2"):
        assert owner.delete(f"/templates/{each}").status_code == 200


@pytest.mark.parametrize(
    "base", ["OTHER", "/etc", "./x.tar", "docker://task", "sha256:" + "a" * 64, "python:3.12"]
)
def test_images_that_the_operator_does_not_permit_are_no_base(
    door: Server, stocked: ImageRegistry, base: str
) -> None:
    client = door.client(MANAGER)
    base = stocked.name("other/base:1") if base == "OTHER" else base
    good = stocked.name("team/base:1")
    for text in (
        f"FROM {base}\n",
        f"ARG X={base}\nFROM $X\n",
        f"FROM {good}\nCOPY --from={base} /etc/passwd /stolen\n",
        f"FROM {base} AS one\nRUN true\nFROM {good}\nCOPY --from=one /etc /stolen\n",
    ):
        made = built(client, name="bad", dockerfile=text)
        assert made["status"] == "failed", made
        assert made["error"]["code"] == "usage", made
    assert stocked.count("other/") == 0


@pytest.mark.parametrize(
    "change",
    [
        {"name": "python"},
        {"name": "python:3"},
        {"name": "../x"},
        {"name": "A"},
        {"name": "a/b"},
        {"name": "a:b:c"},
        {"preload": ["json"]},
        {"packages": {"python": ["six"]}},
        {"packages": {"apt": ["-o=x"]}, "network": "packages"},
        {"network": "open"},
        {"from_image": "x", "dockerfile": "FROM x"},
        {"from_image": "x y\nRUN z"},
        {"files": {"relative": "x"}},
        {"files": {"/x": {"content_b64": "!"}}},
        {"more": 1},
    ],
)
def test_bodies_that_are_refused(door: Server, stocked: ImageRegistry, change: Any) -> None:
    body = {"name": "good", "from_image": stocked.name("team/base:1"), **change}
    answer = door.client(MANAGER).post("/templates", json=body)
    assert answer.status_code == 400, answer.text
    assert error_of(answer)["remedy"]


def test_without_the_scope_or_the_setting_nothing_is_built(
    door: Server, server: Server, stocked: ImageRegistry
) -> None:
    body = {"name": "x", "dockerfile": f"FROM {stocked.name('team/base:1')}\n"}
    assert door.client(ALICE).post("/templates", json=body).status_code == 403
    refused = server.client(MANAGER).post("/templates", json=body)
    assert refused.status_code == 400
    assert "templates_mb" in error_of(refused)["remedy"]
    assert server.client(MANAGER).get("/templates").json()["own"] == []


def test_templates_outlive_the_server_and_eviction_and_have_a_quota(
    stocked: ImageRegistry, tmp_path: Path
) -> None:
    images = [f"{stocked.host}/team/*"]
    more = words(stocked) + "\n[tiers.default]\ntemplates = 1\nbuilds = 1\n"
    text = configuration(more, images=images, templates_mb=30)
    first = start(tmp_path, "--port", "0", config=text)
    base = stocked.name("team/base:1")
    try:
        client = first.client(MANAGER)
        made = built(client, name="kept", dockerfile=f"FROM {base}\nRUN echo kept > /kept\n")
        assert made["status"] == "built", made
        second = client.post("/templates", json={"name": "two", "dockerfile": f"FROM {base}\n"})
        assert (second.status_code, error_of(second)["quota"]) == (429, "templates")
        large = f"FROM {base}\nRUN head -c 40000000 /dev/zero > /large\n"
        over = built(client, name="kept", dockerfile=large)
        assert (over["status"], over["error"]["quota"]) == ("failed", "templates_mb"), over
        moved = built(client, name="kept", dockerfile=f"FROM {base}\nRUN echo moved > /kept\n")
        assert moved["status"] == "built", moved
    finally:
        first.stop()
    again = start(tmp_path, "--port", "0", config=text)
    try:
        client = again.client(MANAGER)
        assert said(client, "cat /kept", template="kept") == "moved\n"
        assert client.get(f"/templates/builds/{made['id']}").status_code == 404
    finally:
        again.stop()


def test_audit_has_builds_and_removals(door: Server, stocked: ImageRegistry) -> None:
    client = door.client(MANAGER)
    made = built(client, name="noted", dockerfile=f"FROM {stocked.name('team/base:1')}\n")
    assert client.delete(f"/templates/builds/{made['id']}").status_code == 200
    assert client.delete("/templates/noted").status_code == 200
    audit = door.client(ADMIN).get("/audit", params={"limit": 500}).json()["records"]
    actions = {each["action"] for each in audit}
    assert {"template.build", "template.remove", "template.cancel"} <= actions


def tar_of(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def uploaded(client: httpx.Client, body: dict[str, Any], context: bytes) -> httpx.Response:
    form: dict[str, Any] = {
        "build": (None, json.dumps(body), "application/json"),
        "context": ("context.tar", context, "application/x-tar"),
    }
    return client.post("/templates", files=form)
