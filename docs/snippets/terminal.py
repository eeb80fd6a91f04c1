"""A terminal: bytes in, bytes out, a size; an unread one stops its program, nothing is cut."""

from cellwall import Sandbox

with Sandbox() as sandbox:
    terminal = sandbox.commands.start(["sh"], pty=(24, 80))
    terminal.resize(40, 120)
    terminal.write("stty size; exit 3\n")
    shown = b"".join(terminal)  # hostile bytes: do not print them on a terminal of yours
    assert b"40 120" in shown, shown
    assert terminal.wait().exit_code == 3
