"""A wall clock that a test sets: every process started with it sees real time plus an offset.

A small library, compiled when it is first needed and preloaded into a program of ours, moves what
libc says of CLOCK_REALTIME; the offset lies in a file that is mapped by all who see this clock.
Nothing of the product knows of it. CLOCK_MONOTONIC is the kernel's own.
"""

from __future__ import annotations

import mmap
import struct
import subprocess
from pathlib import Path

from conftest import require_command

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long long *offset;
__attribute__((constructor)) static void find(void) {
    const char *path = getenv("FAULTS_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *at = mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED) offset = at;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    if (!result && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *offset;
    return result;
}
time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *out, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


class Clock:
    """One such clock; at real time until it jumps."""

    def __init__(self, folder: Path) -> None:
        """Compile it; the test is skipped where there is no C compiler."""
        compiler = require_command("gcc")
        source, self._library = folder / "clock.c", folder / "clock.so"
        source.write_text(_SOURCE, encoding="utf-8")
        flags = ["-O1", "-fPIC", "-shared", "-o", str(self._library)]
        subprocess.run([compiler, *flags, str(source)], check=True, timeout=60)
        self._file = folder / "offset"
        self._file.write_bytes(struct.pack("q", 0))

    @property
    def environ(self) -> dict[str, str]:
        """What a program that is to see this clock is started with."""
        return {"LD_PRELOAD": str(self._library), "FAULTS_CLOCK": str(self._file)}

    def set(self, offset_s: int) -> None:
        """From now on wall time is real time plus `offset_s` seconds."""
        with self._file.open("r+b") as file, mmap.mmap(file.fileno(), 8) as at:
            at[:8] = struct.pack("q", offset_s)
