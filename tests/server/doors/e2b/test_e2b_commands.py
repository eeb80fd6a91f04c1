"""Commands and terminals of a sandbox by the unmodified E2B client."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from e2b import (
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    Sandbox,
    TimeoutException,
)
from e2b.exceptions import AuthenticationException
from e2b.sandbox.commands.command_handle import PtySize

from kit.server.e2b_doors import E2BServer
from kit.waiting import wait_until

SIZE = PtySize(rows=24, cols=80)


@pytest.fixture(scope="module")
def box(e2b: E2BServer) -> Iterator[Sandbox]:
    made = Sandbox.create(envs={"MINE": "of the sandbox"}, timeout=600, **e2b.sdk())
    yield made
    made.kill()


# -- in the foreground -------------------------------------------------------------------------


def test_a_command_has_its_output_directory_and_variables(box: Sandbox) -> None:
    line = 'echo "$MINE $ONE ü"; pwd; id -un; echo wrong >&2'
    done = box.commands.run(line, envs={"ONE": "of the call"}, cwd="/tmp")
    assert done.stdout == "of the sandbox of the call ü\n/tmp\nuser\n"
    assert done.stderr == "wrong\n"
    assert done.exit_code == 0
    assert done.error is None


def test_without_a_directory_it_begins_at_home_and_relative_ones_are_below(box: Sandbox) -> None:
    assert box.commands.run("pwd").stdout == "/home/user\n"
    box.files.make_dir("below")
    assert box.commands.run("pwd", cwd="below").stdout == "/home/user/below\n"
    assert box.commands.run("pwd", cwd="~/below").stdout == "/home/user/below\n"


def test_callbacks_get_the_output_in_pieces(box: Sandbox) -> None:
    out: list[str] = []
    wrong: list[str] = []
    box.commands.run("echo a; echo b >&2", on_stdout=out.append, on_stderr=wrong.append)
    assert ("".join(out), "".join(wrong)) == ("a\n", "b\n")


def test_a_status_other_than_zero_is_an_exception(box: Sandbox) -> None:
    with pytest.raises(CommandExitException) as caught:
        box.commands.run("echo so far; exit 3")
    assert caught.value.exit_code == 3
    assert caught.value.stdout == "so far\n"
    assert caught.value.error == "exit status 3"


@pytest.mark.parametrize("cwd", ["/none", "none"])
def test_a_directory_that_is_not_there_is_named(box: Sandbox, cwd: str) -> None:
    with pytest.raises(InvalidArgumentException, match=r"cwd '.*none' does not exist"):
        box.commands.run("true", cwd=cwd)


def test_a_variable_that_the_server_cannot_set_is_refused(box: Sandbox) -> None:
    with pytest.raises(InvalidArgumentException):
        box.commands.run("true", envs={"not a name": "x"})


def test_root_is_refused_where_the_sandbox_has_none(box: Sandbox) -> None:
    assert box.commands.run("id -un", user="user").stdout == "user\n"
    with pytest.raises(AuthenticationException, match="invalid username: 'root'"):
        box.commands.run("id -un", user="root")


def test_a_command_is_killed_at_its_time_limit(box: Sandbox) -> None:
    with pytest.raises(TimeoutException):
        box.commands.run("exec -a limited-one sleep 60", timeout=0.5)
    assert box.commands.run("true").exit_code == 0
    wait_until(lambda: not _running(box, "limited-one"), "the end of the command")


def _running(box: Sandbox, name: str) -> list[int]:
    return [each.pid for each in box.commands.list() if name in " ".join(each.args)]


def test_much_output_arrives_whole(box: Sandbox) -> None:
    done = box.commands.run("head -c 300000 /dev/zero | tr '\\0' x")
    assert done.stdout == "x" * 300_000


# -- in the background -------------------------------------------------------------------------


def test_input_reaches_a_command_until_it_is_closed(box: Sandbox) -> None:
    handle = box.commands.run("cat; echo end", background=True, stdin=True)
    box.commands.send_stdin(handle.pid, "one\n")
    handle.send_stdin("two\n")
    box.commands.close_stdin(handle.pid)
    assert handle.wait().stdout == "one\ntwo\nend\n"


def test_without_input_a_command_reads_its_end(box: Sandbox) -> None:
    assert box.commands.run("cat; echo end").stdout == "end\n"


def test_a_command_goes_on_when_its_client_leaves_and_is_found_by_its_pid(box: Sandbox) -> None:
    line = "echo first; read word; echo got $word; exit 4"
    handle = box.commands.run(line, background=True, stdin=True)
    assert next(iter(handle))[0] == "first\n"
    handle.disconnect()
    listed = [each for each in box.commands.list() if each.pid == handle.pid]
    assert [each.args[-1] for each in listed] == [line]
    again = box.commands.connect(handle.pid)
    box.commands.send_stdin(handle.pid, "it\n")
    with pytest.raises(CommandExitException) as caught:
        again.wait()
    assert (caught.value.stdout, caught.value.exit_code) == ("got it\n", 4)


def test_the_end_is_told_to_a_client_that_comes_late(box: Sandbox) -> None:
    handle = box.commands.run("exit 5", background=True)
    handle.disconnect()
    wait_until(lambda: handle.pid not in [p.pid for p in box.commands.list()], "the end")
    with pytest.raises(CommandExitException) as caught:
        box.commands.connect(handle.pid).wait()
    assert caught.value.exit_code == 5


def test_several_clients_read_one_command(box: Sandbox) -> None:
    handle = box.commands.run("read word; echo got $word", background=True, stdin=True)
    others = [box.commands.connect(handle.pid) for _ in range(2)]
    box.commands.send_stdin(handle.pid, "it\n")
    assert {each.wait().stdout for each in (handle, *others)} == {"got it\n"}


def test_a_killed_command_says_so(box: Sandbox) -> None:
    handle = box.commands.run("sleep 60 & sleep 60", background=True)
    assert handle.kill() is True
    with pytest.raises(CommandExitException) as caught:
        handle.wait()
    assert (caught.value.exit_code, caught.value.error) == (-1, "signal: killed")
    assert box.commands.kill(handle.pid) is False


def test_what_was_killed_is_gone_when_the_client_looks(box: Sandbox) -> None:
    for handle in (box.commands.run("sleep 60", background=True), box.pty.create(SIZE)):
        assert box.commands.run(f"kill -0 {handle.pid}").exit_code == 0
        assert box.commands.kill(handle.pid) is True
        with pytest.raises(CommandExitException):
            box.commands.run(f"kill -0 {handle.pid}")


def test_a_process_that_is_not_there_is_not_found(box: Sandbox) -> None:
    assert box.commands.kill(999_999) is False
    with pytest.raises(NotFoundException, match="process with pid 999999 not found"):
        box.commands.connect(999_999)
    with pytest.raises(NotFoundException):
        box.commands.send_stdin(999_999, "x")


def test_a_command_ends_with_its_sandbox_and_its_client_learns_it(e2b: E2BServer) -> None:
    made = Sandbox.create(**e2b.sdk())
    handle = made.commands.run("echo on; sleep 60", background=True)
    assert next(iter(handle))[0] == "on\n"
    threading.Timer(0.1, made.kill).start()
    with pytest.raises(TimeoutException, match="killed or reached its end of life"):
        handle.wait()
    assert not made.is_running()
    with pytest.raises(TimeoutException, match="was not found"):
        made.commands.run("true")


# -- terminals ---------------------------------------------------------------------------------


def test_a_terminal_has_its_size_variables_and_status(box: Sandbox) -> None:
    seen: list[bytes] = []
    handle = box.pty.create(SIZE, envs={"ONE": "of the call"})
    box.pty.send_stdin(handle.pid, b'stty size; echo "$ONE"; exit 7\n')
    with pytest.raises(CommandExitException) as caught:
        handle.wait(on_pty=seen.append)
    assert caught.value.exit_code == 7
    text = b"".join(seen).decode()
    assert "24 80" in text
    assert "of the call\r\n" in text


def test_a_terminal_is_left_resized_and_taken_again(box: Sandbox) -> None:
    first = box.pty.create(SIZE)
    first.disconnect()
    box.pty.resize(first.pid, PtySize(rows=30, cols=100))
    seen: list[bytes] = []
    again = box.pty.connect(first.pid)
    box.pty.send_stdin(first.pid, b"stty size; exit\n")
    again.wait(on_pty=seen.append)
    assert b"30 100" in b"".join(seen)


def test_a_terminal_is_listed_and_killed(box: Sandbox) -> None:
    handle = box.pty.create(SIZE)
    assert handle.pid in [each.pid for each in box.commands.list()]
    assert box.pty.kill(handle.pid) is True
    with pytest.raises(CommandExitException) as caught:
        handle.wait()
    assert (caught.value.exit_code, caught.value.error) == (-1, "signal: killed")
    assert box.pty.kill(handle.pid) is False


def test_a_terminal_that_writes_without_a_reader_goes_on(box: Sandbox) -> None:
    handle = box.pty.create(SIZE)
    handle.disconnect()
    line = b"head -c 3000000 /dev/zero | tr '\\0' x; touch /tmp/written; exit\n"
    box.pty.send_stdin(handle.pid, line)
    deadline = time.monotonic() + 30
    while not box.files.exists("/tmp/written"):
        assert time.monotonic() < deadline
