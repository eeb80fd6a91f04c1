"""The same program on each isolation technology of this machine, and what really applied.

A technology that is missing is skipped with its reason; none is replaced by a weaker one.
"""

import cellwall

CODE = "import os, platform; print(platform.release(), 'uid', os.getuid(), 'CPUs', os.cpu_count())"
CHOICES = [
    ("jail", "namespace"),
    ("docker", "namespace"),
    ("docker+runsc", "kernel"),
    ("gvisor", "kernel"),
]

for runtime, isolation in CHOICES:
    try:
        execution = cellwall.run(CODE, runtime=runtime, isolation=isolation)
    except cellwall.CellwallError as error:
        print(f"{runtime}: skipped: {error}")
        continue
    applied = execution.outcome.isolation
    soft = sorted(name for name, how in applied.hardness.items() if how == "soft")
    print(f"{runtime}: {applied.runtime}, level {applied.level.label}, ", end="")
    print(f"soft limits: {', '.join(soft) or 'none'}")
    print(f"    the inside says: {execution.stdout.strip()}")
