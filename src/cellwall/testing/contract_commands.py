"""Contract for commands: their ends, their output, scripts of any length.

`contract.RuntimeContract` includes it; subclass that. Every test leaves the class's one sandbox
usable for the others.
"""

# ruff: noqa: S101 - a test suite, shipped so that third parties can run it

from __future__ import annotations

import pytest

from cellwall.embedded import Sandbox
from cellwall.model.errors import NotFound
from cellwall.model.outcome import Verdict

_LONG = 200_000
"""Number of characters; the kernel limits an argument to 131,071 bytes."""
_IN_TURNS = """
for n in 1 2 3 4 5 6 7 8 9; do echo out $n; echo err $n >&2; done
python3 -c 'import os
for n in range(200): os.write(1 + n % 2, b"%d\\n" % n)'
"""
_OPEN = """python3 -c 'import os
for n in range(3, 64):
    try: print(n, os.fstat(n))
    except OSError: pass'
"""


class CommandsContract:
    """Contract tests for commands; see the module."""

    def test_command_returns_how_it_ended(self, sandbox: Sandbox) -> None:
        """A command returns its result; a string goes to a shell."""
        result = sandbox.commands.run("echo out; echo err >&2; exit 4")
        assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 4)

    def test_unknown_command_is_not_found(self, sandbox: Sandbox) -> None:
        """An unknown command is an error of the caller, not an exit status."""
        with pytest.raises(NotFound):
            sandbox.commands.run(["no-such-program"])

    def test_background_command_takes_stdin_and_signals(self, sandbox: Sandbox) -> None:
        """A background command is listed while it runs."""
        command = sandbox.commands.start(["/bin/bash", "-c", "read x; echo got $x; sleep 60"])
        assert [c.id for c in sandbox.commands.list()] == [command.id]
        command.send_stdin("it\n")
        command.kill(15)
        result = command.wait()
        assert result.outcome.signal == 15 or result.outcome.verdict is Verdict.SIGNALLED
        assert sandbox.commands.list() == []

    def test_command_at_its_limit_leaves_the_sandbox(self, sandbox: Sandbox) -> None:
        """Only the command ends."""
        result = sandbox.commands.run("sleep 60", timeout=0.3)
        assert result.outcome.verdict is Verdict.WALL_TIME
        assert sandbox.run("1").verdict is Verdict.OK

    def test_end_has_a_status_as_shells_have_it(self, sandbox: Sandbox) -> None:
        """The status is the command's own, a signal's, or that of `timeout`."""
        assert sandbox.commands.run("exit 77").status == 77
        assert sandbox.commands.run("kill -SEGV $$").status == 128 + 11
        assert sandbox.commands.run("sleep 60", timeout=0.3).status == 124

    def test_merged_output_keeps_the_order_of_writing(self, sandbox: Sandbox) -> None:
        """Merged streams keep the order of writing; otherwise the output is in two streams."""
        merged = sandbox.commands.run(_IN_TURNS, merge_stderr=True)
        words = [f"{word} {n}" for n in range(1, 10) for word in ("out", "err")]
        assert merged.stdout.splitlines() == [*words, *map(str, range(200))]
        assert merged.stderr == ""
        apart = sandbox.commands.run(_IN_TURNS)
        assert apart.stderr.splitlines()[0] == "err 1"
        assert sorted(merged.stdout) == sorted(apart.stdout + apart.stderr)

    def test_script_longer_than_an_argument_is_a_script(self, sandbox: Sandbox) -> None:
        """A long script has the same `$0`, stdin, status and open descriptors as a short one."""
        text = "x" * _LONG
        short = "cat > f.txt <<'END'\n%s\nEND\nwc -c < f.txt; cat; echo $0 $#; " + _OPEN
        long = sandbox.commands.run(f"{short % text}exit 6", stdin="given ")
        few = sandbox.commands.run(f"{short % 'x'}exit 6", stdin="given ")
        assert long.stdout.split()[0] == str(_LONG + 1)
        assert long.stdout.split()[1:] == few.stdout.split()[1:]
        assert (long.exit_code, long.stderr) == (6, "")

    def test_script_that_ends_before_its_end_was_read(self, sandbox: Sandbox) -> None:
        """The unread rest of a script is discarded."""
        result = sandbox.commands.run("exit 5\n" + "# \n" * _LONG)
        assert result.exit_code == 5
        terminal = sandbox.commands.start(f"echo {'y' * _LONG} | wc -c", pty=(24, 80))
        assert str(_LONG + 1).encode() in b"".join(terminal)
