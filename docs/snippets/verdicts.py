"""How a program ended is data, never an exception."""

import cellwall

execution = cellwall.run("while True: pass", timeout=0.5)
print(execution.verdict, "-", *execution.outcome.notes)
assert execution.verdict is cellwall.Verdict.WALL_TIME

execution = cellwall.run("1 / 0")
assert execution.verdict is cellwall.Verdict.EXCEPTION
assert execution.error is not None
assert execution.error.name == "ZeroDivisionError"

execution = cellwall.run("raise SystemExit(137)")  # not an OOM kill: it only says so
assert execution.verdict is cellwall.Verdict.NONZERO_EXIT
