"""Pure parts of the E2B door's builder: names, the Dockerfile, logs, facts, addresses, uploads."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from cellwall.apps.doors.e2b.building import following, translation
from cellwall.apps.doors.e2b.building.bodies import Step
from cellwall.apps.doors.e2b.building.builds import Build, Builds
from cellwall.apps.doors.e2b.building.translation import Base, Plan
from cellwall.apps.doors.e2b.templates import names, starting
from cellwall.apps.doors.e2b.templates.built_facts import LABEL, BuiltFacts
from cellwall.apps.doors.e2b.templates.names import Shelf
from cellwall.apps.doors.e2b.uploads import archives, links
from cellwall.apps.doors.e2b.uploads.archives import Uploads
from cellwall.apps.doors.e2b.uploads.links import UploadLinks
from cellwall.images import dockerfile
from cellwall.model.errors import CapacityError, UsageError
from cellwall.model.execution import CommandResult
from cellwall.model.outcome import Outcome, Verdict
from cellwall.server.auth.keys import KeyRecord, KeyRing, digest_of
from cellwall.server.core.errors import HttpError

ID = "11111111-2222-3333-4444-555555555555"
OTHER = "99999999-2222-3333-4444-555555555555"
HASH = "ab" * 32


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "A", "a/b", "a:", ":a", "a:b:c", "a b", "a" * 64, "-a", "a\n"]
)
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(HttpError, match="name: "):
        names.called(text)


@pytest.mark.parametrize("tag", ["", ":", "a:b", "a b", "-a", "a" * 64, f"build-{ID}", "a\n"])
def test_what_is_no_tag(tag: str) -> None:
    with pytest.raises(HttpError, match="tags: "):
        names.checked_tag(tag)


def own(name: str, image: str, at: str = "2026-01-01T00:00:00Z", **more: Any) -> dict[str, Any]:
    return {"name": name, "image": image, "built_at": at, **more}


SHELF = Shelf.parse(
    [
        own(f"t:build-{ID}", "sha256:" + "a" * 64, "2026-01-01T00:00:00Z"),
        own(f"t:build-{OTHER}", "sha256:" + "a" * 64, "2026-01-02T00:00:00Z"),
        own("t:default", "sha256:" + "a" * 64, "2026-01-01T00:00:00Z"),
        own("t:later", "sha256:" + "a" * 64, "2026-01-03T00:00:00Z"),
        own("native:latest", "sha256:" + "c" * 64),
    ]
)


def test_a_name_means_its_default_tag_or_what_another_door_called_latest() -> None:
    def meant(text: str) -> str | None:
        found = SHELF.meant(text)
        return None if found is None else str(found["name"])

    assert meant("t") == "t:default"
    assert meant("native") == "native:latest"
    assert meant(f"t:{OTHER}") == f"t:build-{OTHER}"
    assert meant("t:none") is None
    assert meant("none") is None
    derived = SHELF.build_of(SHELF.own["native:latest"])
    assert derived == "cccccccc-cccc-cccc-cccc-cccccccccccc"
    assert meant(f"native:{derived}") == "native:latest"


def test_a_tag_is_of_the_build_that_was_named_with_it_or_of_the_newest() -> None:
    assert SHELF.build_of(SHELF.own["t:default"]) == ID
    assert SHELF.build_of(SHELF.own["t:later"]) == OTHER
    assert {tag for tag, _ in SHELF.tags("t")} == {"default", "later"}
    assert set(SHELF.builds("t")) == {ID, OTHER}
    assert SHELF.stems() == {"t", "native"}
    assert following.displaced(SHELF, "t", ("default", "x")) == {ID}


# -- the Dockerfile --------------------------------------------------------------------------------


def planned(*steps: Step, base: Base | None = None, force: bool = False) -> Plan:
    return translation.plan(
        base or Base("debian:12"), steps, BuiltFacts(cpus=2), "nonce", force=force
    )


def step(kind: str, *args: str, **more: Any) -> Step:
    return Step.model_validate({"type": kind, "args": list(args), **more})


HOSTILE = "x\"\\ $A ${B}\nRUN evil\n# '; \\\n"


def test_no_word_of_a_step_becomes_an_instruction() -> None:
    word = HOSTILE.replace("\n", " ")
    made = planned(
        step("RUN", HOSTILE),
        step("ENV", "A", word),
        step("WORKDIR", f"/{word}"),
        step("COPY", HOSTILE, HOSTILE, "", "", filesHash=HASH),
        step("USER", "worker"),
    )
    (stage,) = dockerfile.parse(made.dockerfile.encode()).stages
    runs = [each for each in stage.instructions if each.name == "RUN"]
    assert {each.name for each in stage.instructions} == {
        *("RUN", "USER", "ENV", "WORKDIR", "LABEL")
    }
    assert (runs[1].words or ())[-1] == HOSTILE
    (env,) = (each for each in stage.instructions if each.name == "ENV")
    assert dockerfile.assignments(env, {"A": "1", "B": "2"}) == {
        "A": word.replace("$A", "1").replace("${B}", "2")
    }
    place = [each for each in stage.instructions if each.name == "WORKDIR"][-1]
    assert dockerfile.expand(place, place.text, {"A": "1"}) == f"/{word}"
    assert made.files == (HASH,)


def test_lines_are_of_the_steps_that_they_were_made_for() -> None:
    made = planned(step("RUN", "one"), step("RUN", "two", "root"), step("ENV", "A", "b"))
    lines = made.dockerfile.split("\n")
    assert lines[0] == "FROM debian:12"
    assert {made.steps[number + 1] for number, line in enumerate(lines) if '"two"' in line} == {2}
    assert made.steps[1] == 0
    assert made.commands == {1: "one", 2: "two"}
    assert sorted(set(made.steps.values())) == [0, 1, 2, 3]


def test_steps_have_the_user_that_the_client_means_and_the_image_is_roots() -> None:
    made = planned(step("RUN", "a"), step("RUN", "b", "root"), step("USER", "me"), step("RUN", "c"))
    users = re.findall(r'^USER (\w+)$|"([abc])"\]$', made.dockerfile, re.M)
    said = [user or f"={command}" for user, command in users]
    assert said == ["root", "user", "=a", "root", "=b", "me", "=c", "root"]
    assert facts_of(made) == BuiltFacts(user="me", cpus=2)


def facts_of(made: Plan) -> BuiltFacts:
    (stage,) = dockerfile.parse(made.dockerfile.encode()).stages
    labels = dockerfile.assignments(stage.instructions[-1], {})
    return BuiltFacts.of({"labels": labels})


def test_a_template_inherits_what_its_base_says_unless_it_says_otherwise() -> None:
    base = Base("t:build-x", BuiltFacts(user="me", start="old $x", ready="check", memory_mb=512))
    made = translation.plan(base, (), BuiltFacts(start='new "$x"\n'), "n", force=False)
    assert facts_of(made) == BuiltFacts(user="me", start='new "$x"\n', ready="check", memory_mb=512)
    assert "WORKDIR" not in made.dockerfile


def test_only_forced_steps_and_those_behind_them_are_new() -> None:
    assert "nonce" not in planned(step("RUN", "a")).dockerfile
    made = planned(step("RUN", "a"), step("RUN", "b", force=True), step("RUN", "c", force=True))
    assert made.dockerfile.count("nonce") == 1
    assert made.dockerfile.index('"a"') < made.dockerfile.index("nonce")
    assert made.dockerfile.index("nonce") < made.dockerfile.index('"b"')
    whole = planned(step("RUN", "a"), force=True).dockerfile
    assert whole.split("\n")[1] == 'LABEL e2b.forced="nonce"'


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (step("RUN"), "args: RUN has 0"),
        (step("RUN", "a\0b"), "NUL"),
        (step("RUN", "a", "x y"), "no name of a user"),
        (step("RUN", "a", filesHash=HASH), "filesHash"),
        (step("ENV", "A"), "args: ENV has 1"),
        (step("ENV", "A", "1", "B"), "without a value"),
        (step("ENV", "A B", "1"), "no name of a variable"),
        (step("ENV", "A", "1\n2"), "several lines"),
        (step("USER", "../x"), "no name of a user"),
        (step("USER", "x", "true"), "sudo gives nothing"),
        (step("WORKDIR", "a\nb"), "one line"),
        (step("COPY", "a", "b"), "filesHash"),
        (step("COPY", "../a", "b", "", "", filesHash=HASH), "leads out"),
        (step("COPY", "a", "", filesHash=HASH), "no target"),
        (step("COPY", "a", "b", "x;y", "", filesHash=HASH), "no owner"),
        (step("COPY", "a", "b", "", "rwx", filesHash=HASH), "no octal mode"),
    ],
)
def test_a_step_that_cannot_be_done_is_refused_with_its_number(given: Step, said: str) -> None:
    with pytest.raises(HttpError, match=r"steps\[1\]: ") as caught:
        planned(step("RUN", "a"), given)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "a\nRUN x", "$A", "-a", "a" * 256])
def test_what_is_no_base(name: str) -> None:
    with pytest.raises(HttpError, match="fromImage"):
        planned(base=Base(name))


@pytest.mark.parametrize("text", ["", "x", "[]", '{"cpus": 0}', '{"user": 1}', '{"start": null'])
def test_a_label_that_cannot_be_read_counts_as_nothing(text: str) -> None:
    assert BuiltFacts.of({"labels": {LABEL: text}}) == BuiltFacts()
    assert BuiltFacts.of({"labels": None}) == BuiltFacts()


# -- builds ----------------------------------------------------------------------------------------


def build(tenant: str = "t", stem: str = "s", *tags: str) -> Build:
    return Build(tenant, stem, tags or ("default",), BuiltFacts())


def test_entries_of_a_log_keep_their_numbers_and_are_at_most_a_hundred() -> None:
    made = build()
    for number in range(250):
        made.tell(f"{number}", 1)
    assert [each["message"] for each in made.as_json(199)["logEntries"]] == [
        str(number) for number in range(199, 250)
    ]
    assert len(made.as_json()["logEntries"]) == 100
    assert made.as_json(250)["logEntries"] == made.as_json(10**9)["logEntries"] == []


def test_a_log_without_an_end_costs_a_bounded_amount() -> None:
    made = build()
    for _ in range(30_000):
        made.tell("x" * 100, 1)
    messages = list[str]()
    while found := made.as_json(len(messages))["logEntries"]:
        messages += [each["message"] for each in found]
    assert len(messages) <= 10_001
    assert "left out" in messages[-1]


def test_a_failure_is_told_as_clients_know_it() -> None:
    made = build()
    made.plan = planned(step("RUN", "whoami", "root123"))
    line = next(line for line, number in made.plan.steps.items() if number == 1)
    error = {"message": "the sandbox has no user 'root123'", "line": line, "remedy": None}
    assert following.reason(made, error) == (
        "failed to run command 'whoami': command failed: unauthenticated: invalid username: "
        "'root123'",
        "1",
    )
    failed = {"message": "m", "line": line, "exit_code": 2, "output": "out\n"}
    assert following.reason(made, failed)[0].endswith("command failed: exit status 2: out")
    assert following.reason(made, {"message": "m", "line": 1})[1] == "base"
    assert following.reason(made, {"message": "m", "line": 0}) == ("m", "finalize")


def test_a_build_is_its_tenants_and_no_two_of_a_tag_run_at_once() -> None:
    builds = Builds()
    first = builds.reserve(build("a", "s", "x", "y"))
    for tenant, stem in (("b", "s"), ("a", "other")):
        with pytest.raises(HttpError, match="not found"):
            builds.get(tenant, stem, first.id)
    assert builds.get("a", "s", first.id) is first
    first.change("building")
    with pytest.raises(HttpError, match="already under way") as caught:
        builds.reserve(build("a", "s", "y"))
    assert caught.value.status == 409
    builds.reserve(build("a", "s", "z"))
    builds.reserve(build("b", "s", "y"))


def test_reservations_of_a_tenant_are_bounded_and_running_builds_stay() -> None:
    builds = Builds()
    first = builds.reserve(build("a", "first"))
    first.change("building")
    made = [builds.reserve(build("a", f"s{number}")) for number in range(60)]
    assert builds.get("a", "first", first.id) is first
    assert builds.get("a", "s59", made[-1].id) is made[-1]
    with pytest.raises(HttpError):
        builds.get("a", "s0", made[0].id)
    for each in made:
        each.change("building")
    with pytest.raises(CapacityError):
        builds.reserve(build("a", "more"))


# -- uploads ---------------------------------------------------------------------------------------


def test_an_address_opens_one_archive_of_one_key_for_an_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ring = KeyRing([KeyRecord(digest_of("k" * 40), "a"), KeyRecord(digest_of("l" * 40), "b")])
    made = UploadLinks(b"s" * 32, ring)
    caller = ring.find("k" * 40)
    assert caller is not None
    path = made.make(HASH, caller)
    opened = made.opened(path)
    assert opened is not None
    assert (opened.digest, opened.caller, opened.is_expired) == (HASH, caller, False)
    assert UploadLinks(b"x" * 32, ring).opened(path) is None
    assert UploadLinks(b"s" * 32, KeyRing([])).opened(path) is None
    for at in range(len(links.PREFIX), len(path)):
        changed = path[:at] + ("1" if path[at] == "0" else "0") + path[at + 1 :]
        assert made.opened(changed) is None, at
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + 3601)
    late = made.opened(path)
    assert late is not None
    assert late.is_expired


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for each in data:
        yield each


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def archive_in(folder: Path, name: str) -> Path:
    return next(folder.rglob(name))


def hash_of(number: int) -> str:
    return f"{number:064x}"


def test_archives_are_kept_by_tenant_within_a_share(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = Uploads(tmp_path, 100)
        for number in range(3):
            await store.take("../a", hash_of(number), pieces(b"x" * 40))
            os.utime(archive_in(tmp_path, hash_of(number)), (time.time() - 100 + number,) * 2)
        assert files_in(tmp_path) == [hash_of(1), hash_of(2)]
        assert await store.has("../a", hash_of(1))
        assert not await store.has("b", hash_of(1))
        await store.take("../a", hash_of(3), pieces(b"y" * 40))
        assert files_in(tmp_path) == [hash_of(1), hash_of(3)]  # the other was used before
        with pytest.raises(UsageError, match="more than"):
            await store.take("../a", hash_of(4), pieces(b"x" * 60, b"x" * 60))
        for tenant in "bcd":
            await store.take(tenant, hash_of(1), pieces(b"x" * 100))
        with pytest.raises(CapacityError, match="all tenants"):
            await store.take("e", hash_of(1), pieces(b"x" * 100))
        assert not [name for name in files_in(tmp_path) if name.startswith(".")]

    asyncio.run(scenario())


def test_an_archive_that_does_not_come_whole_leaves_the_old_one(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise ConnectionError

    async def scenario() -> None:
        store = Uploads(tmp_path, 100)
        await store.take("a", HASH, pieces(b"whole"))
        with pytest.raises(ConnectionError):
            await store.take("a", HASH, broken())
        with store.lent("a", [HASH]) as folder:
            assert folder is not None
            assert (folder / HASH / "files.tar").read_bytes() == b"whole"
        assert files_in(tmp_path) == [HASH]
        with pytest.raises(UsageError, match="was not uploaded"), store.lent("b", [HASH]):
            pass

    asyncio.run(scenario())


def test_what_is_old_or_left_by_a_killed_server_goes(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = Uploads(tmp_path, 100)
        await store.take("a", hash_of(1), pieces(b"1"))
        await store.take("a", hash_of(2), pieces(b"2"))
        old, kept = (archive_in(tmp_path, hash_of(number)) for number in (1, 2))
        (kept.parent / ".coming-x").write_bytes(b"half")
        (tmp_path / ".lent-x" / "y").mkdir(parents=True)
        long_ago = time.time() - archives.KEPT_S - 1
        os.utime(old, (long_ago, long_ago))
        assert await Uploads(tmp_path, 100).has("a", hash_of(2))
        assert files_in(tmp_path) == [hash_of(2)]
        assert not (tmp_path / ".lent-x").exists()

    asyncio.run(scenario())


# -- start commands --------------------------------------------------------------------------------


def test_a_sandbox_that_does_not_become_ready_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    class Commands:
        async def run(self, argv: list[str], **_: object) -> CommandResult:
            outcome = Outcome(Verdict.NONZERO_EXIT, cast("Any", None), exit_code=1)
            return CommandResult(f"{argv[-1]} said no", "", outcome)

    class Standing:
        commands = Commands()

        async def close(self) -> None:
            closed.append("closed")

    monkeypatch.setattr(starting, "READY_S", 0.3)
    facts = BuiltFacts(ready="check")
    work = starting.started(cast("Any", None), cast("Any", Standing()), facts)
    with pytest.raises(HttpError, match="'check' ended with 1: check said no") as caught:
        asyncio.run(work)
    assert (caught.value.status, closed) == (504, ["closed"])
