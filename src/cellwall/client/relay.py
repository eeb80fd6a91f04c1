"""Relay: raw bytes to a port inside, over a terminal of the server's and a program inside.

The server's HTTP access to a port passes HTTP and WebSockets only. So a small program is started
inside, on a terminal in raw mode, which connects and passes frames: one letter, four bytes of
length, data. It bypasses nothing: the program is confined like all code inside. Its output is
hostile; the invariant is that only known frames of bounded length are accepted.

    from inside   C connected · R refused · T timed out · D data · E end · X reset
    to inside     D data · E end · X break off
"""

from __future__ import annotations

import shlex
import struct

from cellwall.model.errors import SandboxBroken

HEADER_BYTES = 5
DATA_BYTES = 32 * 1024
_MOST_BYTES = 64 * 1024
_HEADER = struct.Struct(">cI")

_PROGRAM = """
import os,socket,struct,sys,threading,tty
def say(kind,data=b""):
    data=kind+struct.pack(">I",len(data))+data
    while data: data=data[os.write(1,data):]
def exactly(count):
    data=b""
    while len(data)<count:
        piece=os.read(0,count-len(data))
        if not piece: os._exit(1)
        data+=piece
    return data
def inward():
    try:
        while True:
            kind,size=struct.unpack(">cI",exactly(5))
            if kind==b"D": line.sendall(exactly(size))
            elif kind==b"E":
                line.shutdown(1)
                return
            else:
                line.setsockopt(1,13,struct.pack("ii",1,0))
                os._exit(0)
    except OSError: broken()
def broken():
    try: say(b"X")
    finally: os._exit(0)
tty.setraw(0)
line=None
answer=b"R"
for family,host in ((2,"127.0.0.1"),(10,"::1")):
    try:
        line=socket.socket(family,1)
        line.settimeout(float(sys.argv[2]))
        line.connect((host,int(sys.argv[1])))
        break
    except TimeoutError: answer,line=b"T",None
    except OSError: line=None
if line is None:
    say(answer)
    sys.exit()
line.settimeout(None)
line.setsockopt(6,1,1)
say(b"C")
thread=threading.Thread(target=inward,daemon=True)
thread.start()
try:
    while True:
        data=line.recv(32768)
        if not data: break
        say(b"D",data)
except OSError: broken()
say(b"E")
thread.join()
"""


def command(port: int, timeout_s: float) -> str:
    """Return the line for the shell inside."""
    return f"exec python3 -c {shlex.quote(_PROGRAM.strip())} {port} {timeout_s:g}"


def frame(kind: bytes, data: bytes = b"") -> bytes:
    """Return one frame."""
    return _HEADER.pack(kind, len(data)) + data


class Frames:
    """Parser of the relay program's output."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """Return the frames that are complete; `SandboxBroken` for anything else."""
        self._held += data
        found = []
        while len(self._held) >= HEADER_BYTES:
            kind, size = _HEADER.unpack_from(self._held)
            if kind not in b"CRTDEX" or size > _MOST_BYTES:
                said = bytes(self._held[:200]).decode("utf-8", "replace")
                raise SandboxBroken(
                    f"connect: the inside answered {said!r}",
                    remedy="the template needs python3 for raw connections",
                )
            end = HEADER_BYTES + size
            if len(self._held) < end:
                break
            found.append((kind, bytes(self._held[HEADER_BYTES:end])))
            del self._held[:end]
        return found
