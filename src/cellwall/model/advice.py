"""Advice: what to try next after each verdict, and the limits it is about; sentences only.

Written for a reader that will write the next program: the useful steps, in the order of trying. The
invariant: every verdict but `ok` has an entry, and an entry names things that a caller can really
do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.model.outcome import Verdict

if TYPE_CHECKING:
    from cellwall.model.execution import ExecutionError
    from cellwall.model.limits import Limits

HAPPENED = {
    Verdict.EXCEPTION: "it raised an exception",
    Verdict.COMPILE_ERROR: "the compiler refused it, and nothing ran",
    Verdict.NONZERO_EXIT: "it ended with an exit status that is not 0",
    Verdict.SIGNALLED: "it was ended by a signal",
    Verdict.WALL_TIME: "it was stopped because its time was over",
    Verdict.CPU_TIME: "it was stopped because its CPU time was used up",
    Verdict.MEMORY: "it needed more memory than it may have, and was killed",
    Verdict.PROCESSES: "it started more processes and threads than it may have",
    Verdict.DISK: "it wrote more than there is room for",
    Verdict.OUTPUT: "it ended well, but printed or showed more than is kept",
    Verdict.SYSCALL: "the kernel ended it at a system call that is not allowed",
    Verdict.CANCELLED: "it was stopped by its caller",
    Verdict.INTERRUPTED: "it was interrupted by its caller",
    Verdict.SANDBOX_ERROR: "the sandbox ended under it",
}

_LIMITS = {
    Verdict.WALL_TIME: ("wall_s",),
    Verdict.CPU_TIME: ("cpu_s", "cpus"),
    Verdict.MEMORY: ("memory_mb",),
    Verdict.PROCESSES: ("processes",),
    Verdict.DISK: ("disk_mb", "inodes", "file_mb"),
    Verdict.OUTPUT: ("output_kb",),
}

_NEXT = {
    Verdict.EXCEPTION: "read the last line of the traceback, correct the code and run it again.",
    Verdict.COMPILE_ERROR: "correct the first error that the compiler names and run it again.",
    Verdict.NONZERO_EXIT: "read stderr for the reason, correct it and run it again.",
    Verdict.SIGNALLED: (
        "native code may have crashed, or the program killed itself: "
        "try smaller input or another way to do it."
    ),
    Verdict.WALL_TIME: (
        "look for an endless loop or a wait for input or network; do less work in one run, "
        "or ask for a longer timeout."
    ),
    Verdict.CPU_TIME: (
        "look for an endless loop; use a faster method or less data, or ask for more cpu_s."
    ),
    Verdict.MEMORY: (
        "work on the data in pieces, with smaller types or fewer copies, "
        "or ask for more memory_mb. In a session its variables are lost with it; files and the "
        "rest of the sandbox stay, unless a note says that all of it has ended."
    ),
    Verdict.PROCESSES: (
        "use fewer processes and threads (a smaller pool), wait for those that have ended, "
        "or ask for more processes. In a session its variables are lost with it, files are not."
    ),
    Verdict.DISK: (
        "remove files you no longer need, write less or compress it, or ask for more disk_mb."
    ),
    Verdict.OUTPUT: (
        "nothing has to be run again if what you see is enough; otherwise print a summary, "
        "or write the whole to a file and read parts of it."
    ),
    Verdict.SYSCALL: (
        "do not try the same again: mounting, tracing, kernel modules and the like are never "
        "allowed. Do it in another way."
    ),
    Verdict.CANCELLED: "run it again only if its answer is still wanted.",
    Verdict.INTERRUPTED: "variables of the context are kept; run what is still wanted.",
    Verdict.SANDBOX_ERROR: (
        "this may not be the program's fault: create a new sandbox and try once more; "
        "if it happens again, change the program and tell the user."
    ),
}

NODE_LOST = (
    "The machine that had it was lost with all that was there; the program was not the reason, and "
    "how far it came is not known."
)
NODE_UNREACHABLE = (
    "The machine that has it does not answer now; the program is not the reason, and what runs "
    "there may go on."
)
"""Sentences on the ends that no program can bring about: for one who judges the program by them."""

_NO_NETWORK = (
    "there is no network unless the sandbox was given some: "
    "write the data as a file into the sandbox, or work without it."
)
_NEXT_FOR = {
    "ModuleNotFoundError": (
        "only what the template has can be imported: use another library or the standard library, "
        "or another template."
    ),
    "FileNotFoundError": (
        "list the files; relative paths start at /home/user, and another sandbox has other files."
    ),
    "NameError": (
        "variables live only within one context of one sandbox: define it in this code, "
        "or run in the sandbox and context that has it."
    ),
    "EOFError": "there is no more input to read: give it as stdin, or put the value into the code.",
    "MemoryError": "work on the data in pieces, or ask for more memory_mb.",
    "SyntaxError": "the code does not parse: correct the line that is shown and run it again.",
    "PermissionError": "write below /home/user or /tmp; the rest is read-only or not yours.",
    "gaierror": _NO_NETWORK,
    "URLError": _NO_NETWORK,
    "ConnectionError": _NO_NETWORK,
    "ConnectTimeout": _NO_NETWORK,
    "ConnectError": _NO_NETWORK,
}


def limits_met(verdict: Verdict, limits: Limits | None) -> str:
    """Return the limits that `verdict` is about, with their numbers: `wall_s = 30`."""
    if limits is None:
        return ""
    return ", ".join(f"{name} = {getattr(limits, name):g}" for name in _LIMITS.get(verdict, ()))


def next_step(verdict: Verdict, error: ExecutionError | None, limits: Limits | None) -> str:
    """Return what to try after `verdict`, which is not `ok`."""
    if verdict is Verdict.EXCEPTION and error is not None:
        return _NEXT_FOR.get(error.name.rpartition(".")[2], _NEXT[verdict])
    if verdict is Verdict.MEMORY and limits is not None:
        # Suggest a number, so that a model does not try 513 next.
        return f"{_NEXT[verdict]} (Twice as much is {2 * limits.memory_mb}.)"
    return _NEXT[verdict]
