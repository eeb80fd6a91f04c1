"""Messages of the daemon's two services, with the field numbers that clients use."""

from __future__ import annotations

from cellwall.apps.doors.e2b.daemon.connect.schema import Field, Message

FILE, DIRECTORY, SYMLINK, UNSPECIFIED = 1, 2, 3, 0
CREATE, WRITE, REMOVE, RENAME, CHMOD = 1, 2, 3, 4, 5
SIGTERM, SIGKILL = 15, 9

EMPTY = Message("empty", {})

# -- process -----------------------------------------------------------------------------------

_SIZE = Message("PTY.Size", {"cols": Field(1, "uint32"), "rows": Field(2, "uint32")})
_PTY = Message("PTY", {"size": Field(1, "message", _SIZE)})
_CONFIG = Message(
    "ProcessConfig",
    {
        "cmd": Field(1, "string"),
        "args": Field(2, "string", is_repeated=True),
        "envs": Field(3, "map"),
        "cwd": Field(4, "string"),
    },
)
_SELECTOR = Message(
    "ProcessSelector",
    {
        "pid": Field(1, "uint32", is_alternative=True),
        "tag": Field(2, "string", is_alternative=True),
    },
)
_INPUT = Message(
    "ProcessInput",
    {
        "stdin": Field(1, "bytes", is_alternative=True),
        "pty": Field(2, "bytes", is_alternative=True),
    },
)
_PROCESS = Field(1, "message", _SELECTOR)
SELECT = Message("ConnectRequest", {"process": _PROCESS})
"""Also the request of CloseStdin."""
START = Message(
    "StartRequest",
    {
        "process": Field(1, "message", _CONFIG),
        "pty": Field(2, "message", _PTY),
        "tag": Field(3, "string"),
        "stdin": Field(4, "bool"),
    },
)
UPDATE = Message("UpdateRequest", {"process": _PROCESS, "pty": Field(2, "message", _PTY)})
SEND_INPUT = Message(
    "SendInputRequest", {"process": _PROCESS, "input": Field(2, "message", _INPUT)}
)
SEND_SIGNAL = Message(
    "SendSignalRequest",
    {
        "process": _PROCESS,
        "signal": Field(
            2, "enum", names={"SIGNAL_UNSPECIFIED": 0, "SIGNAL_SIGTERM": 15, "SIGNAL_SIGKILL": 9}
        ),
    },
)
STREAM_INPUT = Message(
    "StreamInputRequest",
    {
        "start": Field(
            1, "message", Message("StartEvent", {"process": _PROCESS}), is_alternative=True
        ),
        "data": Field(
            2,
            "message",
            Message("DataEvent", {"input": Field(2, "message", _INPUT)}),
            is_alternative=True,
        ),
        "keepalive": Field(3, "message", EMPTY, is_alternative=True),
    },
)
_PROCESS_EVENT = Message(
    "ProcessEvent",
    {
        "start": Field(1, "message", Message("StartEvent", {"pid": Field(1, "uint32")})),
        "data": Field(
            2,
            "message",
            Message(
                "DataEvent",
                {
                    "stdout": Field(1, "bytes"),
                    "stderr": Field(2, "bytes"),
                    "pty": Field(3, "bytes"),
                },
            ),
        ),
        "end": Field(
            3,
            "message",
            Message(
                "EndEvent",
                {
                    "exit_code": Field(1, "sint32"),
                    "exited": Field(2, "bool"),
                    "status": Field(3, "string"),
                    "error": Field(4, "string"),
                },
            ),
        ),
        "keepalive": Field(4, "message", EMPTY),
    },
)
EVENT = Message("StartResponse", {"event": Field(1, "message", _PROCESS_EVENT)})
PROCESSES = Message(
    "ListResponse",
    {
        "processes": Field(
            1,
            "message",
            Message(
                "ProcessInfo",
                {
                    "config": Field(1, "message", _CONFIG),
                    "pid": Field(2, "uint32"),
                    "tag": Field(3, "string"),
                },
            ),
            is_repeated=True,
        )
    },
)

# -- filesystem --------------------------------------------------------------------------------

_FILE_TYPES = {
    "FILE_TYPE_UNSPECIFIED": UNSPECIFIED,
    "FILE_TYPE_FILE": FILE,
    "FILE_TYPE_DIRECTORY": DIRECTORY,
    "FILE_TYPE_SYMLINK": SYMLINK,
}
_EVENT_TYPES = {
    "EVENT_TYPE_UNSPECIFIED": 0,
    "EVENT_TYPE_CREATE": CREATE,
    "EVENT_TYPE_WRITE": WRITE,
    "EVENT_TYPE_REMOVE": REMOVE,
    "EVENT_TYPE_RENAME": RENAME,
    "EVENT_TYPE_CHMOD": CHMOD,
}
_INFO = Message(
    "EntryInfo",
    {
        "name": Field(1, "string"),
        "type": Field(2, "enum", names=_FILE_TYPES),
        "path": Field(3, "string"),
        "size": Field(4, "int64"),
        "mode": Field(5, "uint32"),
        "permissions": Field(6, "string"),
        "owner": Field(7, "string"),
        "group": Field(8, "string"),
        "modified_time": Field(9, "timestamp"),
        "symlink_target": Field(10, "string"),
        "metadata": Field(11, "map"),
    },
)
PATH = Message("StatRequest", {"path": Field(1, "string")})
"""Also the request of MakeDir and Remove."""
LIST_DIR = Message("ListDirRequest", {"path": Field(1, "string"), "depth": Field(2, "uint32")})
MOVE = Message("MoveRequest", {"source": Field(1, "string"), "destination": Field(2, "string")})
ENTRY = Message("StatResponse", {"entry": Field(1, "message", _INFO)})
ENTRIES = Message("ListDirResponse", {"entries": Field(1, "message", _INFO, is_repeated=True)})
WATCH = Message(
    "WatchDirRequest",
    {
        "path": Field(1, "string"),
        "recursive": Field(2, "bool"),
        "include_entry": Field(3, "bool"),
        "allow_network_mounts": Field(4, "bool"),
    },
)
"""Also the request of CreateWatcher."""
WATCHER = Message("GetWatcherEventsRequest", {"watcher_id": Field(1, "string")})
"""Also the request of RemoveWatcher, and the answer of CreateWatcher."""
_CHANGE = Message(
    "FilesystemEvent",
    {
        "name": Field(1, "string"),
        "type": Field(2, "enum", names=_EVENT_TYPES),
        "entry": Field(3, "message", _INFO),
    },
)
CHANGES = Message(
    "GetWatcherEventsResponse", {"events": Field(1, "message", _CHANGE, is_repeated=True)}
)
WATCHED = Message(
    "WatchDirResponse",
    {
        "start": Field(1, "message", EMPTY),
        "filesystem": Field(2, "message", _CHANGE),
        "keepalive": Field(3, "message", EMPTY),
    },
)
