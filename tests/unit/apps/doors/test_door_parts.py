"""The pure parts of the doors: selectors, bindings, archives, comparisons, maps of verdicts."""

from __future__ import annotations

import asyncio
import base64
import functools
import io
import zipfile
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from cellwall.apps.doors import asked_limits, tool_versions, validation
from cellwall.apps.doors.dify import answers as dify
from cellwall.apps.doors.dify.binding import RUN, BindingError, bound
from cellwall.apps.doors.fusion import answers as fusion
from cellwall.apps.doors.fusion.bodies import CodeBody
from cellwall.apps.doors.judge0 import answers as judge0
from cellwall.apps.doors.judge0 import encoding
from cellwall.apps.doors.judge0.door import MOST_SHOWN_CHARS, all_shown
from cellwall.apps.doors.judge0.fields import Asked
from cellwall.apps.doors.judge0.languages import JudgeLanguage
from cellwall.apps.doors.judge0.submissions import MOST, MOST_SIZE, Submission, Submissions
from cellwall.apps.doors.piston.answers import end_of, signal_name
from cellwall.apps.doors.piston.selectors import matches
from cellwall.apps.doors.ragflow import answers as ragflow
from cellwall.apps.doors.ragflow.programs import RunBody
from cellwall.apps.doors.registry import MODULES, maker_of
from cellwall.languages.registry import LANGUAGES
from cellwall.model.errors import CapacityError, NotFound, UsageError
from cellwall.model.execution import Execution
from cellwall.model.limits import Limits
from cellwall.model.outcome import Isolation, IsolationLevel, Outcome, Truncated, Verdict

ISOLATION = Isolation("jail", IsolationLevel.NAMESPACE, "")


def ended(verdict: Verdict, exit_code: int | None = None, signal: int | None = None) -> Execution:
    outcome = Outcome(verdict, ISOLATION, exit_code, signal, notes=("why",))
    return Execution("e", "python", "out", "err", outcome, Limits())


@pytest.mark.parametrize(
    ("selector", "fits"),
    [
        ("*", True), ("", True), ("x", True), ("3", True), ("3.x", True), ("3.11", True),
        ("3.11.2", True), ("v3.11.2", True), ("=3.11.2", True), ("^3.0.0", True), ("^3.12", False),
        ("~3.11.0", True), ("~3.11.3", False), ("~3", True), ("~>3.11", True), (">=3.11", True),
        (">3.11", False), (">3.11.1", True), ("<=3.11", True), ("<3.11", False), (">=3 <4", True),
        ("<3 || >=3.11", True), ("2.x", False), ("4", False), ("3.11.2-beta", False),
        ("3.0.0 - 4.0.0", False), ("latest", False), (">= 3", True), ("3" * 200, False),
    ],
)  # fmt: skip
def test_selector_fits_as_in_semver(selector: str, fits: bool) -> None:
    assert matches(selector, (3, 11, 2)) is fits


def test_caret_of_zero_fixes_the_first_other_number() -> None:
    assert matches("^0.2.3", (0, 2, 4))
    assert not matches("^0.2.3", (0, 3, 0))
    assert not matches("^0.0.3", (0, 0, 4))


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("Python 3.11.2", "3.11.2"), ("v20.20.2", "20.20.2"), ('openjdk version "17"', "17.0.0"),
        ("gcc (Debian 12.2.0-14) 12.2.0", "12.2.0"), ("no number", "0.0.0"),
    ],
)  # fmt: skip
def test_version_is_read_from_what_a_tool_prints(printed: str, version: str) -> None:
    assert tool_versions.shown(tool_versions.version_in(printed)) == version


@pytest.mark.parametrize("verdict", list(Verdict))
def test_every_verdict_has_an_answer_behind_every_door(verdict: Verdict) -> None:
    execution = ended(verdict, exit_code=0 if verdict is Verdict.OK else 1)
    is_ok = verdict is Verdict.OK
    assert (ragflow.answer_of(execution)["status"] == "success") is is_ok
    shown = dify.answer_of(execution)
    assert (shown["code"] == 0 and shown["data"]["error"] == "") is is_ok
    assert (fusion.code_answer(execution, ())["status"] == "Success") is is_ok
    assert (end_of(execution.outcome)["status"] is None) is is_ok
    assert (judge0.result_of([execution], None)["status_id"] == judge0.ACCEPTED) is is_ok


def test_cut_output_of_a_failed_program_is_its_own_failure() -> None:
    outcome = Outcome(Verdict.NONZERO_EXIT, ISOLATION, 3, truncated=Truncated(stdout=9))
    assert end_of(outcome)["status"] == "RE"


def test_unknown_signal_has_a_name() -> None:
    assert (signal_name(9), signal_name(63)) == ("SIGKILL", "SIG63")
    text = dify.answer_of(ended(Verdict.SIGNALLED, signal=63))["data"]["error"]
    assert "signal: signal 63" in text


def test_artifacts_are_bounded_in_number_and_size() -> None:
    files = {f"artifacts/{n:02}.png": b"x" for n in range(12)}
    files["artifacts/00.csv"] = bytes(ragflow.ARTIFACT_BYTES + 1)
    found = ragflow.artifacts_of(files)
    assert len(found) == ragflow.MOST_ARTIFACTS
    assert all(each["name"].endswith(".png") for each in found)


def test_form_and_query_are_bound_and_the_body_counts_first() -> None:
    form = "application/x-www-form-urlencoded"
    found = bound(RUN, form, "code=query&language=python3", b"code=body&enable_network=true")
    assert found == {
        "language": "python3", "code": "body", "preload": "", "enable_network": True,
    }  # fmt: skip
    with pytest.raises(BindingError, match=r"strconv\.ParseBool"):
        bound(RUN, form, "", b"code=1&language=x&enable_network=maybe")


def test_json_with_a_charset_is_json_and_its_faults_are_200() -> None:
    with pytest.raises(BindingError) as fault:
        bound(RUN, "application/json; charset=utf-8", "", b"{")
    assert fault.value.status == 200


@pytest.mark.parametrize(
    ("output", "expected", "same"),
    [
        ("a\n", "a", True), ("a  \nb\n\n", "a\nb", True), ("a\r\n", "a", True),
        ("a b", "a  b", False),
        (" a", "a", False), ("", "\n", True), ("a\n\nb", "a\nb", False),
    ],
)  # fmt: skip
def test_white_space_at_ends_of_lines_does_not_count(
    output: str, expected: str, same: bool
) -> None:
    assert judge0.is_same(output, expected) is same


def test_base64_has_line_ends_as_of_ruby() -> None:
    plain = base64.b64encode(b"x" * 50).decode()
    text = encoding.to_base64("x" * 50)
    assert text == f"{plain[:60]}\n{plain[60:]}\n"
    assert encoding.from_base64(text) == b"x" * 50
    assert encoding.to_base64("") == ""
    with pytest.raises(ValueError, match="is not base64"):
        encoding.from_base64("A")


def zipped(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return packed.getvalue()


def test_archives_are_bounded_in_sum() -> None:
    half = bytes(encoding.UNPACKED_BYTES // 2)
    assert len(encoding.unpacked(zipped({"a": half, "b": half}))) == 2
    with pytest.raises(ValueError, match="bytes unpacked"):
        encoding.unpacked(zipped({"a": half, "b": half, "c": b"x"}))


def test_archives_are_bounded_in_number() -> None:
    def archive(count: int) -> bytes:
        return zipped({f"f{number}": b"" for number in range(count)})

    most = encoding.MOST_FILES
    assert len(encoding.unpacked(archive(most))) == most
    with pytest.raises(ValueError, match="more than 1000 files"):
        encoding.unpacked(archive(most + 1))
    with pytest.raises(ValueError, match="more than 4000 entries"):
        encoding.unpacked(archive(4 * most + 1))


@pytest.mark.parametrize(
    ("method", "is_taken"),
    [
        (zipfile.ZIP_STORED, True),
        (zipfile.ZIP_DEFLATED, True),
        (zipfile.ZIP_BZIP2, False),
        (zipfile.ZIP_LZMA, False),
    ],
)
def test_only_methods_that_unpack_in_pieces_are_taken(method: int, is_taken: bool) -> None:
    data = zipped({"a": b"x"}, method)
    if is_taken:
        assert encoding.unpacked(data) == {"a": b"x"}
    else:
        with pytest.raises(ValueError, match="another method than deflate"):
            encoding.unpacked(data)


@pytest.mark.parametrize(
    "data",
    [b"", b"PK", zipped({"a": b"x"})[:-10], b"\0" * 100],
    ids=["empty", "begun", "cut", "zeros"],  # an archive has the time in it
)
def test_what_is_no_archive_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="zip archive"):
        encoding.unpacked(data)


def test_limit_above_the_ceiling_is_refused_and_one_at_it_is_not() -> None:
    most = Limits(wall_s=5)
    assert asked_limits.wall(5, most)["wall_s"] == 5
    for seconds in (5.1, 0, -1, float("nan"), float("inf")):
        with pytest.raises(UsageError):
            asked_limits.wall(seconds, most)


def test_fault_repeats_only_small_input() -> None:
    for size, is_shown in ((10, True), (10_000, False)):
        with pytest.raises(validation.Unprocessable) as fault:
            validation.checked(RunBody, b'{"code_b64": "!%s"}' % (b"x" * size))
        assert ("input" in fault.value.detail[0]) is is_shown


@pytest.mark.parametrize(("count", "faults"), [(1000, 20), (1001, 1)])
def test_object_of_many_members_is_one_fault(count: int, faults: int) -> None:
    files = ",".join(f'"{number}": 1' for number in range(count))
    data = b'{"code": "", "language": "python", "files": {%s}}' % files.encode()
    with pytest.raises(validation.Unprocessable) as fault:
        validation.checked(CodeBody, data)
    assert len(fault.value.detail) == faults


@pytest.mark.parametrize("data", [b"[" * 100_000, b"{", b"\xff", b"9" * 5000])
def test_what_cannot_be_parsed_is_a_fault_of_the_body(data: bytes) -> None:
    with pytest.raises(validation.Unprocessable):
        validation.checked(RunBody, data)


def on_a_loop(scene: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @functools.wraps(scene)
    def run() -> None:
        asyncio.run(scene())

    return run


def asked(text: str = "x", **files: bytes) -> Asked:
    language = JudgeLanguage(71, "Python", LANGUAGES["python"])
    return Asked({"source_code": text}, language, {"files": files})


def submission(text: str = "x", *, owner: str = "t", **files: bytes) -> Submission:
    return Submission(owner, asked(text, **files))


@on_a_loop
async def test_old_submissions_make_room_and_running_ones_do_not() -> None:
    submissions = Submissions(retention_s=600)
    kept = [submission() for _ in range(MOST)]
    for each in kept:
        submissions.add(each)
    with pytest.raises(CapacityError):
        submissions.add(submission())
    submissions.add(submission(owner="other"))
    submissions.end(kept[5], {"status_id": 3, "stdout": "x"})
    submissions.add(submission())
    assert len(submissions.all("t")) == MOST
    with pytest.raises(NotFound):
        submissions.find("t", kept[5].token)


@on_a_loop
async def test_unpacked_files_count_until_the_program_has_ended() -> None:
    submissions = Submissions(retention_s=600)
    first = submission(a=bytes(MOST_SIZE - 1))
    submissions.add(first)
    with pytest.raises(CapacityError):
        submissions.add(submission())
    submissions.end(first, {"status_id": 3})
    assert first.size == 1
    submissions.add(submission("y" * (MOST_SIZE - 1)))
    assert submissions.find("t", first.token) is first


@on_a_loop
async def test_refused_submission_drops_no_result() -> None:
    submissions = Submissions(retention_s=600)
    ended, running = submission(), submission(a=bytes(MOST_SIZE - 2))
    submissions.add(ended)
    submissions.end(ended, {"status_id": 3})
    submissions.add(running)
    with pytest.raises(CapacityError):
        submissions.add(submission("yyy"))
    assert submissions.find("t", ended.token) is ended
    submissions.add(submission("y"))
    with pytest.raises(NotFound):
        submissions.find("t", ended.token)


@on_a_loop
async def test_submission_that_never_fits_is_not_told_to_wait() -> None:
    submissions = Submissions(retention_s=600)
    submissions.add(submission("y" * MOST_SIZE, owner="other"))
    with pytest.raises(UsageError, match="more than"):
        submissions.add(submission("y" * (MOST_SIZE + 1)))


@on_a_loop
async def test_answer_about_several_submissions_is_bounded() -> None:
    query = {"fields": "source_code"}
    found = [submission("x" * (MOST_SHOWN_CHARS // 4))] * 4
    assert len(await all_shown([*found, None], query)) == 5
    with pytest.raises(UsageError, match="texts have more than"):
        await all_shown([*found, submission("x")], query)
    assert len(await all_shown([*found, submission("x")], {"fields": "token"})) == 5


@on_a_loop
async def test_results_make_room_for_later_ones() -> None:
    submissions = Submissions(retention_s=600)
    first, second = submission(), submission()
    submissions.add(first)
    submissions.add(second)
    submissions.end(first, {"status_id": 3, "stdout": "x" * (MOST_SIZE // 2)})
    assert submissions.find("t", first.token) is first
    submissions.end(second, {"status_id": 3, "stdout": "x" * (MOST_SIZE // 2)})
    assert submissions.all("t") == [second]


@on_a_loop
async def test_submissions_leave_after_their_time() -> None:
    submissions = Submissions(retention_s=-1)  # the time of each is over with its end
    first, second = submission(), submission()
    submissions.add(first)
    submissions.add(second)
    assert submissions.find("t", first.token) is first
    submissions.end(first, {"status_id": 3})
    with pytest.raises(NotFound):
        submissions.find("t", first.token)
    assert submissions.all("t") == [second]


@on_a_loop
async def test_submissions_leave_although_their_tenant_is_away() -> None:
    submissions = Submissions(retention_s=-1)
    gone = submission(owner="away")
    submissions.add(gone)
    submissions.end(gone, {"status_id": 3})
    assert set(submissions._by_owner) == {"away"}
    submissions.add(submission())
    assert set(submissions._by_owner) == {"t"}


def test_each_door_of_the_registry_can_be_made_and_takes_no_unknown_option() -> None:
    state: Any = None
    for name in MODULES:
        with pytest.raises(UsageError, match=rf"doors\.{name}\.wrong is not known"):
            maker_of(name)(state, {"wrong": 1})
