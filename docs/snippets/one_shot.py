"""One program in one fresh sandbox."""

import cellwall

execution = cellwall.run(
    "import sys\nprint(sum(map(int, sys.stdin)))",
    stdin="1\n2\n39\n",
    timeout=5,
    limits={"memory_mb": 256},
)
print(execution.verdict, execution.stdout)
assert execution.ok
assert execution.stdout == "42\n"
