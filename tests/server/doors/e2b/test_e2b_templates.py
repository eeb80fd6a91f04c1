"""The unmodified Python SDK builds templates through the E2B door, and makes sandboxes of them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2b import LogEntry, Sandbox, Template
from e2b.exceptions import BuildException, SandboxException, TemplateException
from e2b.template.types import BuildInfo

from kit.server.e2b_doors import refusal
from kit.server.e2b_templates import Workshop, folder_with, workshop
from kit.servers import ALICE, MANAGER
from kit.waiting import wait_until

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def shop() -> Iterator[Workshop]:
    os.environ.setdefault("NO_PROXY", "127.0.0.1,localhost")
    with workshop() as made:
        yield made


def fresh() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


def said(shop: Workshop, template: str, command: str, **options: str) -> str:
    with Sandbox.create(template, timeout=60, **shop.sdk()) as sandbox:
        return str(sandbox.commands.run(command, **options).stdout)


def ended(shop: Workshop, build: BuildInfo, how: str) -> None:
    wait_until(
        lambda: Template.get_build_status(build, **shop.sdk()).status.value == how, f"a build {how}"
    )


def failure(shop: Workshop, template: object) -> BuildException:
    with pytest.raises(BuildException) as caught:
        Template.build(template, fresh(), **shop.sdk())  # type: ignore[arg-type]  # no types there
    return caught.value


def test_steps_become_a_template_whose_sandboxes_have_its_user_and_directory(
    shop: Workshop,
) -> None:
    name = fresh()
    steps = (
        Template()
        .from_image(shop.image)
        .run_cmd("id -un > who; pwd > where")
        .run_cmd("id -un > /etc/by-root", user="root")
        .set_envs({"FIRST": 'a "b" \\'})
        .set_envs({"SECOND": "$FIRST-$OF_IMAGE"})
        .run_cmd('printf "%s" "$SECOND" > second')
        .set_user("worker")
        .set_workdir("/srv/app")
        .run_cmd("id -un > who; pwd >> who")
    )
    Template.build(steps, name, **shop.sdk())
    line = "cat /home/user/who /home/user/where /etc/by-root /home/user/second; echo; cat who; "
    line += "id -un; pwd; stat -c %U /srv/app /home/user/who"
    assert said(shop, name, line).split("\n") == [
        *("user", "/home/user", "root", 'a "b" \\-1', "worker", "/srv/app"),
        *("worker", "/srv/app", "worker", "user", ""),
    ]
    assert said(shop, name, "id -un", user="root") == "root\n"


def test_the_logs_come_by_their_numbers_until_the_end(shop: Workshop) -> None:
    name, logs = fresh(), list[LogEntry]()
    steps = Template().from_base_image().run_cmd("for n in $(seq 250); do echo line-$n; done")
    made = Template.build(steps, name, on_build_logs=logs.append, **shop.sdk())
    lines = [each.message for each in logs if each.message.startswith("line-")]
    assert lines == [f"line-{number}" for number in range(1, 251)]
    whole = Template.get_build_status(made, **shop.sdk())
    assert len(whole.log_entries) == 100
    assert whole.status.value == "ready"
    later = Template.get_build_status(made, logs_offset=3, **shop.sdk())
    assert later.log_entries[0].message == whole.log_entries[3].message
    assert Template.get_build_status(made, logs_offset=10_000, **shop.sdk()).log_entries == []


def test_a_build_in_the_background_is_told_of_while_it_runs(shop: Workshop) -> None:
    steps = Template().from_base_image().run_cmd("echo begun; sleep 4")
    made = Template.build_in_background(steps, f"{fresh()}:v1", **shop.sdk())
    assert Template.get_build_status(made, **shop.sdk()).status.value == "building"

    def has_begun() -> bool:
        found = Template.get_build_status(made, **shop.sdk())
        return "begun" in found.logs and found.status.value == "building"

    wait_until(has_begun, "the command has written")
    ended(shop, made, "ready")


FILES = {
    "app/main.sh": "echo main",
    "app/lib/one.txt": "1",
    "app/lib/two.txt": "2",
    "[id].txt": "literal",
    "only.txt": "only",
}


def test_files_are_copied_as_a_dockerfile_copies_them(shop: Workshop, tmp_path: Path) -> None:
    folder_with(tmp_path, FILES)
    (tmp_path / "app" / "link").symlink_to("main.sh")
    (tmp_path / "app" / "nowhere").symlink_to("/not/there")
    name = fresh()
    steps = (
        Template(file_context_path=tmp_path)
        .from_image(shop.image)
        .copy("app", "/srv/app")
        .copy("app/lib/*", "relative")
        .copy("only.txt", "/srv/renamed.txt", user="root", mode=0o640)
        .copy("only.txt", "/srv/into/", gzip=False)
        .copy(["only.txt", "[[]id].txt"], "/srv/both/")
        .copy("app/link", "/srv/resolved", resolve_symlinks=True)
        .run_cmd("cat relative/one.txt")
    )
    Template.build(steps, name, **shop.sdk())
    line = "cd /srv; cat app/main.sh app/lib/two.txt app/link renamed.txt into/only.txt; echo; "
    line += "readlink app/nowhere app/link; stat -c '%U %a' renamed.txt app app/main.sh; "
    line += "ls both ~/relative; test ! -L resolved && cat resolved; ls -a / | grep e2b"
    done = said(shop, name, f"{line}; true", user="root").split("\n")
    assert done[0] == "echo main2echo mainonlyonly"
    assert done[1:6] == ["/not/there", "main.sh", "root 640", "user 755", "user 644"]
    assert "only.txt" in done
    assert "echo main" in done[-2:]
    assert not [each for each in done if each.startswith(".e2b")]


def test_files_are_uploaded_once_and_again_if_the_client_insists(
    shop: Workshop, tmp_path: Path
) -> None:
    folder_with(tmp_path, {"file": uuid.uuid4().hex})

    def uploaded(**options: object) -> bool:
        logs = list[LogEntry]()
        steps = Template(file_context_path=tmp_path).from_image(shop.image)
        steps = steps.copy("file", "/srv/", **options)  # type: ignore[arg-type]  # of each its own
        Template.build(steps, fresh(), on_build_logs=logs.append, **shop.sdk())
        return any(each.message.startswith("Uploaded") for each in logs)

    assert uploaded()
    assert not uploaded()
    assert uploaded(force_upload=True)


def test_the_other_steps_of_the_sdk_do_what_they_say(shop: Workshop) -> None:
    name = fresh()
    steps = (
        Template()
        .from_image(shop.image)
        .make_dir("/home/user/made", mode=0o700)
        .run_cmd(["echo a > a", "echo b > b"])
        .rename("a", "renamed")
        .remove("b")
        .make_symlink("renamed", "linked")
        .make_symlink("made", "linked", force=True)
    )
    Template.build(steps, name, **shop.sdk())
    assert said(shop, name, "ls; readlink linked").split() == ["linked", "made", "renamed", "made"]


def test_a_failed_command_is_told_with_its_step_and_output(shop: Workshop) -> None:
    steps = Template().from_image(shop.image).run_cmd("true").run_cmd("echo broken; exit 7")
    made = Template.build_in_background(steps, fresh(), **shop.sdk())
    ended(shop, made, "error")
    reason = Template.get_build_status(made, **shop.sdk()).reason
    assert reason is not None
    assert reason.step == "2"
    assert reason.message.startswith("failed to run command 'echo broken; exit 7': command failed:")
    assert reason.message.endswith("exit status 7: broken")


def test_a_user_that_does_not_exist_is_named(shop: Workshop) -> None:
    steps = Template().from_image(shop.image).run_cmd("whoami", user="root123")
    assert (
        "failed to run command 'whoami': command failed: unauthenticated: invalid username: "
        "'root123'" in str(failure(shop, steps))
    )


def test_an_image_that_is_not_permitted_fails_the_base(shop: Workshop) -> None:
    steps = Template().from_image(f"{shop.stocked.host}/other/base:1")
    made = Template.build_in_background(steps, fresh(), **shop.sdk())
    ended(shop, made, "error")
    reason = Template.get_build_status(made, **shop.sdk()).reason
    assert reason is not None
    assert reason.step == "base"


def test_what_cannot_be_had_is_refused_by_name(shop: Workshop) -> None:
    private = Template().from_image(shop.image, username="me", password="word")
    assert "501: fromImageRegistry" in str(failure(shop, private))
    assert "'e2bdev/other'" in str(failure(shop, Template().from_image("e2bdev/other")))
    unknown = Template().from_template("never-built")
    assert "fromTemplate: template 'never-built' not found" in str(failure(shop, unknown))
    with pytest.raises(BuildException, match=r"403: .*manage is needed"):
        Template.build(Template().from_base_image(), fresh(), **shop.sdk(ALICE))
    with pytest.raises(BuildException, match="'base' is a template of the operator's"):
        Template.build(Template().from_base_image(), "base", **shop.sdk())


def test_a_template_goes_on_from_another(shop: Workshop) -> None:
    first, second = fresh(), fresh()
    steps = Template().from_image(shop.image).set_user("worker").set_workdir("/srv")
    Template.build(steps, f"{first}:v1", **shop.sdk())
    Template.build(
        Template().from_template(f"{first}:v1").run_cmd("id -un > /home/worker/who"),
        second,
        **shop.sdk(),
    )
    assert said(shop, second, "cat ~/who; id -un; pwd").split() == ["worker", "worker", "/srv"]


def test_a_dockerfile_becomes_a_template(shop: Workshop, tmp_path: Path) -> None:
    folder_with(tmp_path, {"say.sh": "echo said"})
    name = fresh()
    text = f"FROM {shop.image}\nARG WORD=x\nWORKDIR /srv\nCOPY say.sh .\nRUN echo $WORD > word\n"
    Template.build(Template(file_context_path=tmp_path).from_dockerfile(text), name, **shop.sdk())
    assert said(shop, name, "sh say.sh; cat word; id -un; pwd; stat -c %U word").split() == [
        *("said", "x", "user", "/srv", "root")
    ]


def test_variables_of_the_steps_are_not_those_of_sandboxes(shop: Workshop) -> None:
    """Neither `ARG` nor `ENV`, which arrive alike: the start command and what follows have them."""
    first, second = fresh(), fresh()
    text = (
        f"FROM {shop.image}\nARG TOKEN=hush\nENV OF_IMAGE=2 PATH=/more:$PATH\n"
        "RUN echo $TOKEN-$OF_IMAGE-$PATH > /srv/said\n"
    )
    start = 'echo "$TOKEN-$OF_IMAGE" > /tmp/started; sleep 60'
    steps = Template().from_dockerfile(text).set_start_cmd(start, "test -e /tmp/started")
    Template.build(steps, first, **shop.sdk())
    more = Template().from_template(first).run_cmd("echo $TOKEN-$OF_IMAGE > ~/said")
    Template.build(more, second, **shop.sdk())
    shown = "cat /srv/said /tmp/started; echo $TOKEN-$OF_IMAGE-$PATH"
    path = "/usr/local/bin:/usr/bin:/bin"
    assert said(shop, first, shown).split() == [f"hush-2-/more:{path}", "hush-2", f"-1-{path}"]
    assert said(shop, second, "cat ~/said; echo $TOKEN").split() == ["hush-2"]


def test_a_gateway_of_mcp_is_started_where_the_template_has_one(shop: Workshop) -> None:
    name = fresh()
    gateway = "printf '#!/bin/sh\\necho \"$*\" $(id -un) >/srv/asked\\n' >/usr/bin/mcp-gateway"
    steps = Template().from_image(shop.image)
    steps = steps.run_cmd(f"{gateway}; chmod +x /usr/bin/mcp-gateway", user="root")
    Template.build(steps, name, **shop.sdk())
    servers: Any = {"search": {"token": "t"}}
    with Sandbox.create(name, timeout=60, mcp=servers, **shop.sdk()) as sandbox:
        assert sandbox.files.read("/srv/asked") == '--config {"search": {"token": "t"}} root\n'
    with pytest.raises(SandboxException, match="Failed to start MCP gateway"):
        Sandbox.create("base", timeout=60, mcp=servers, **shop.sdk())
    assert Sandbox.list(**shop.sdk()).next_items() == []


def test_variables_of_the_steps_stay_where_the_operator_says_so() -> None:
    with workshop("template_env = true\n") as shop:
        name = fresh()
        text = f"FROM {shop.image}\nARG WORD=x\nENV OF_IMAGE=2\n"
        Template.build(Template().from_dockerfile(text), name, **shop.sdk())
        assert said(shop, name, "echo $WORD-$OF_IMAGE") == "x-2\n"


def test_the_start_command_runs_in_each_sandbox_before_its_client_has_it(shop: Workshop) -> None:
    name = fresh()
    start = "echo $$ > /tmp/started; while :; do sleep 1; done"
    steps = Template().from_base_image().set_start_cmd(start, "test -e /tmp/started")
    Template.build(steps, name, **shop.sdk())
    for _ in range(2):
        with Sandbox.create(name, timeout=60, **shop.sdk()) as sandbox:
            pid = int(sandbox.files.read("/tmp/started"))
            running = sandbox.commands.list()
            assert [each.pid for each in running if start in each.args] != []
            assert sandbox.commands.run(f"kill -0 {pid}").exit_code == 0


def test_a_step_is_done_again_only_if_the_client_skips_the_cache(shop: Workshop) -> None:
    def stamp(*, is_skipped: bool) -> str:
        name = fresh()
        steps = Template().from_image(shop.image).run_cmd("date +%s%N > stamp; echo once")
        Template.build(steps, name, skip_cache=is_skipped, **shop.sdk())
        return said(shop, name, "cat stamp")

    first = stamp(is_skipped=False)
    assert stamp(is_skipped=False) == first
    assert stamp(is_skipped=True) != first


def test_limits_of_the_template_are_those_of_its_sandboxes(shop: Workshop) -> None:
    name = fresh()
    steps = Template().from_base_image()
    Template.build(steps, name, cpu_count=1, memory_mb=384, **shop.sdk())
    with Sandbox.create(name, timeout=60, **shop.sdk()) as sandbox:
        found = sandbox.get_info()
        assert (found.cpu_count, found.memory_mb) == (1, 384)


# -- names, tags, builds -------------------------------------------------------------------


@pytest.fixture(scope="module")
def tagged(shop: Workshop) -> tuple[str, BuildInfo]:
    """A template with one build, which has the tag v1."""
    name = fresh()
    steps = Template().from_base_image().run_cmd("echo 1 > version")
    return name, Template.build(steps, f"{name}:v1", **shop.sdk())


def test_a_template_exists_once_it_is_built(shop: Workshop, tagged: tuple[str, BuildInfo]) -> None:
    name, _ = tagged
    assert Template.exists(name, **shop.sdk())
    assert Template.exists("base", **shop.sdk())
    assert not Template.exists("never-built", **shop.sdk())
    assert not Template.exists(name, **shop.sdk(ALICE))


def test_a_sandbox_is_made_by_tag_and_by_build(
    shop: Workshop, tagged: tuple[str, BuildInfo]
) -> None:
    name, build = tagged
    assert said(shop, f"{name}:v1", "cat version") == "1\n"
    assert said(shop, f"{name}:{build.build_id}", "cat version") == "1\n"
    for wrong in (f"{name}:v2", f"{name}:{uuid.uuid4()}"):
        with pytest.raises(Exception, match=f"tag '.*' does not exist for template '{name}'"):
            Sandbox.create(wrong, **shop.sdk())


def test_tags_are_assigned_listed_and_removed(
    shop: Workshop, tagged: tuple[str, BuildInfo]
) -> None:
    name, build = tagged
    info = Template.assign_tags(f"{name}:v1", ["production", "stable"], **shop.sdk())
    assert (info.build_id, info.tags) == (build.build_id, ["production", "stable"])
    found = Template.get_tags(name, **shop.sdk())
    assert {each.tag: each.build_id for each in found} == dict.fromkeys(
        ("v1", "production", "stable"), build.build_id
    )
    assert said(shop, f"{name}:stable", "cat version") == "1\n"
    Template.remove_tags(name, "stable", **shop.sdk())
    assert {each.tag for each in Template.get_tags(name, **shop.sdk())} == {"v1", "production"}
    for wrong in (":x", f"{name}:", "a b"):
        with pytest.raises(TemplateException, match="400"):
            Template.assign_tags(f"{name}:v1", wrong, **shop.sdk())
    with pytest.raises(TemplateException, match="404"):
        Template.get_tags("never-built", **shop.sdk())
    with pytest.raises(TemplateException, match="404"):
        Template.remove_tags(name, "never", **shop.sdk())


def test_a_new_build_takes_the_tag_and_ends_the_old_one(shop: Workshop) -> None:
    name = fresh()

    def built(word: str) -> BuildInfo:
        steps = Template().from_base_image().run_cmd(f"echo {word} > version")
        return Template.build(steps, name, **shop.sdk())

    old, new = built("old"), built("new")
    assert said(shop, name, "cat version") == "new\n"
    (tag,) = Template.get_tags(name, **shop.sdk())
    assert (tag.tag, tag.build_id) == ("default", new.build_id)
    with pytest.raises(Exception, match="does not exist"):
        Sandbox.create(f"{name}:{old.build_id}", **shop.sdk())
    client = shop.e2b.client(MANAGER)
    assert client.delete(f"/templates/{name}").status_code == 204
    assert not Template.exists(name, **shop.sdk())


def test_no_two_builds_of_a_tag_run_at_once(shop: Workshop) -> None:
    name = fresh()
    steps = Template().from_base_image().run_cmd(f"sleep 3; echo {name}")
    made = Template.build_in_background(steps, name, **shop.sdk())
    with pytest.raises(BuildException, match=r"409: .*already under way"):
        Template.build_in_background(steps, name, **shop.sdk())
    ended(shop, made, "ready")


def test_builds_above_the_quota_are_refused_in_the_words_that_runners_wait_for(
    shop: Workshop,
) -> None:
    steps = Template().from_base_image().run_cmd(f"sleep 5; echo {fresh()}")
    made = [Template.build_in_background(steps, fresh(), **shop.sdk()) for _ in range(2)]
    answer = started(shop, {"fromImage": shop.image})
    assert answer.headers["retry-after"]
    assert "maximum number of concurrent template builds" in refusal(answer, 429)
    for each in made:
        ended(shop, each, "ready")


def started(shop: Workshop, body: dict[str, object]) -> httpx.Response:
    client = shop.e2b.client(MANAGER)
    made = client.post("/v3/templates", json={"name": fresh()}).json()
    return client.post(f"/v2/templates/{made['templateID']}/builds/{made['buildID']}", json=body)


def test_a_build_whose_files_are_not_there_is_refused(shop: Workshop) -> None:
    # As the SDK for JavaScript writes a step.
    packed = {"forceUpload": True, "resolveSymlinks": True, "gzip": True}
    step = {"type": "COPY", "args": ["a", "/a", "", ""], "filesHash": "a" * 64, **packed}
    answer = started(shop, {"fromImage": shop.image, "steps": [step]})
    assert "was not uploaded" in refusal(answer, 400)


def test_a_build_that_only_its_template_is_left_of_is_ready(shop: Workshop) -> None:
    build_id, name = str(uuid.uuid4()), fresh()
    body = {"name": f"{name}:build-{build_id}", "from_image": shop.image, "wait": 40}
    with shop.e2b.server.client(MANAGER) as client:
        assert client.post("/templates", json=body).json()["status"] == "built"
    client = shop.e2b.client(MANAGER)
    found = client.get(f"/templates/{name}/builds/{build_id}/status").json()
    assert (found["status"], found["logEntries"]) == ("ready", [])
    message = refusal(client.get(f"/templates/{name}/builds/{uuid.uuid4()}/status"), 404)
    assert "not found" in message


def test_a_template_of_another_door_is_used_by_its_name(shop: Workshop) -> None:
    name = fresh()
    body = {"name": name, "dockerfile": f"FROM {shop.image}\nWORKDIR /srv\n", "wait": 40}
    with shop.e2b.server.client(MANAGER) as client:
        assert client.post("/templates", json=body).json()["status"] == "built"
    assert said(shop, name, "id -un; pwd").split() == ["root", "/srv"]
    Template.build(
        Template().from_template(name).run_cmd("pwd > /where"), f"{name}:2", **shop.sdk()
    )
    assert said(shop, f"{name}:2", "cat /where") == "/srv\n"
