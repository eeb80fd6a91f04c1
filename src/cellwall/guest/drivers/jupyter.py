"""Runs any installed Jupyter kernel for a context: one request, one answer.

This file is not imported: the template's interpreter (`interpreter.py`) runs its text with the
paths of two pipes and the kernelspec's name, and it starts that kernel as its own child. It talks
to the kernel over Unix sockets, because a sandbox has no network. It needs jupyter_client in the
template.

The kernel receives the signals of this process's group itself, and dies with this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from importlib import import_module
from typing import Any

_PR_SET_PDEATHSIG = 1
_PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
_PATIENCE_MS = 1000
_PUBLISHED_MS = 100
"""Milliseconds within which a kernel publishes its messages about an answer."""
_MOST_ASKED = 50
"""Number of questions after which a kernel that publishes nothing about them counts as ready."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_WITHOUT_TCP = """\
# libzmq gives up on the whole process when it asks for network interfaces and there is no netlink.
# Kernels written in Python open a TCP port for what child processes print, and can do without it.
try:
    from errno import ENODEV
    from zmq import ZMQError
    from zmq.sugar.socket import Socket
except ImportError:
    pass
else:
    def refusing(method):
        def refuse(self, address, *rest):
            if str(address).startswith("tcp:"):
                raise ZMQError(ENODEV)
            return method(self, address, *rest)
        return refuse
    Socket.bind, Socket.connect = refusing(Socket.bind), refusing(Socket.connect)
"""


class Driver:
    """One kernel and the connection to it."""

    def __init__(self, requests: str, answers: str, name: str) -> None:
        self._requests = requests
        self._answers = answers
        self._name = name
        self._is_interrupted = False
        self._is_message_mode = False
        self._wakeup_r, wakeup_w = os.pipe()
        for fd in (self._wakeup_r, wakeup_w):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wakeup_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, self._on_interrupt)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)

    def _on_interrupt(self, _number: int, _frame: object) -> None:
        self._is_interrupted = True

    def say(self, **message: object) -> None:
        """Send one message to the context."""
        data = memoryview(json.dumps(message, default=str).encode() + b"\n")
        pipe = os.open(self._answers, os.O_WRONLY)
        try:
            while data:
                data = data[os.write(pipe, data) :]
        finally:
            os.close(pipe)

    def start(self) -> None:
        """Start the kernel and wait until it answers."""
        specs = import_module("jupyter_client.kernelspec")
        try:
            spec: Any = specs.KernelSpecManager().get_kernel_spec(self._name)
        except specs.NoSuchKernel:
            self.say(ev="missing", what=f"a Jupyter kernel called {self._name!r}")
            sys.exit(1)
        self._is_message_mode = spec.interrupt_mode == "message"
        folder = tempfile.mkdtemp(prefix="kernel-")
        connection = {
            "transport": "ipc",
            "ip": os.path.join(folder, "socket"),
            "key": secrets.token_hex(16),
            "signature_scheme": "hmac-sha256",
            **{port: number for number, port in enumerate(_PORTS, 1)},
        }
        path = os.path.join(folder, "connection.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(connection, file)
        with open(os.path.join(folder, "sitecustomize.py"), "w", encoding="utf-8") as file:
            file.write(_WITHOUT_TCP)
        paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": ":".join(paths), **spec.env}
        words = {"{connection_file}": path, "{resource_dir}": spec.resource_dir}
        argv = [_filled(word, words) for word in spec.argv]
        try:
            # One thread so far, so that code may run between fork and exec.
            self._kernel = subprocess.Popen(
                argv,
                env=environment,
                preexec_fn=self._in_kernel,  # noqa: PLW1509 - no threads here
            )
        except FileNotFoundError as error:
            self.say(ev="missing", what=f"{error.filename!r}, which the kernel needs,")
            sys.exit(1)
        self._client: Any = import_module("jupyter_client").BlockingKernelClient()
        self._client.load_connection_info(connection)
        self._client.start_channels()
        self._wait_ready()
        self.say(ev="ready")

    def _in_kernel(self) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if self._is_message_mode:
            os.setpgid(0, 0)  # a signal to the context's group is not meant for it

    def _wait_ready(self) -> None:
        self._poller: Any = import_module("zmq").Poller()
        for channel in (self._client.iopub_channel, self._client.stdin_channel):
            self._poller.register(channel.socket, 1)
        self._poller.register(self._wakeup_r, 1)
        while not self._heard(self._client.shell_channel, self._client.kernel_info()):
            self._check_alive()
        # An answer is not enough: messages that the kernel publishes come on a connection of their
        # own, which may be made later, and until then are lost. So the kernel is asked until they
        # come as well.
        for _ in range(_MOST_ASKED):
            asked = self._client.kernel_info()
            self._heard(self._client.shell_channel, asked)
            if self._heard(self._client.iopub_channel, asked, _PUBLISHED_MS):
                break
            self._check_alive()

    @staticmethod
    def _heard(
        channel: Any,  # noqa: ANN401  a class of the template's jupyter_client
        asked: str,
        patience_ms: int = _PATIENCE_MS,
    ) -> bool:
        """Return whether the last message about `asked` comes; earlier messages are dropped."""
        while channel.socket.poll(patience_ms):
            message = channel.get_msg(timeout=0)
            is_last = message["content"].get("execution_state", "idle") == "idle"
            if is_last and message["parent_header"].get("msg_id") == asked:
                return True
        return False

    def _check_alive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup_r, 4096)
        code = self._kernel.poll()
        if code is None:
            return
        if code < 0:
            signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
            os.kill(os.getpid(), -code)
        os._exit(code)

    def serve(self) -> None:
        """Answer requests until the context closes the pipe."""
        while True:
            with open(self._requests, encoding="utf-8") as pipe:
                line = pipe.readline()
            if not line:
                self._kernel.kill()
                return
            self._check_alive()
            _kind, source, stdin, is_displayed = line.rstrip("\n").split("\t")
            self._is_interrupted = False
            with open(source, encoding="utf-8") as file:
                code = file.read()
            with open(os.devnull if stdin == "-" else stdin, encoding="utf-8") as typed:
                self.say(ev="done", raised=self._cell(code, typed, is_displayed == "1"))

    def _cell(self, code: str, typed: Any, is_displayed: bool) -> bool:  # noqa: ANN401  a file
        asked = self._client.execute(code, allow_stdin=True, stop_on_error=False)
        is_raised = False
        is_told = False
        while True:
            ready = dict(self._poller.poll())
            if self._wakeup_r in ready:
                self._check_alive()
            if self._is_interrupted and self._is_message_mode and not is_told:
                is_told = True
                message = self._client.session.msg("interrupt_request", {})
                self._client.control_channel.send(message)
            if self._client.stdin_channel.socket in ready:
                self._client.stdin_channel.get_msg(timeout=0)
                self._client.input(typed.readline().rstrip("\n"))
            while self._client.iopub_channel.socket.poll(0):
                message = self._client.iopub_channel.get_msg(timeout=0)
                if message["parent_header"].get("msg_id") != asked:
                    continue
                kind, content = message["msg_type"], message["content"]
                if kind == "status" and content["execution_state"] == "idle":
                    return self._ended(is_raised)
                is_raised = is_raised or kind == "error"
                self._show(kind, content, is_displayed)

    def _ended(self, is_raised: bool) -> bool:
        if self._is_interrupted and not is_raised:
            self.say(ev="error", name="KeyboardInterrupt", value="", traceback="interrupted")
        return is_raised or self._is_interrupted

    def _show(self, kind: str, content: dict[str, Any], is_displayed: bool) -> None:
        if kind == "status":
            self.say(ev="running")
        elif kind == "stream":
            os.write(1 if content["name"] == "stdout" else 2, content["text"].encode())
        elif kind == "display_data" or (kind == "execute_result" and is_displayed):
            word = "result" if kind == "execute_result" else "display"
            metadata = content.get("metadata") or {}
            self.say(ev="display", kind=word, data=content["data"], metadata=metadata)
        elif kind == "error":
            trace = _COLOUR.sub("", "\n".join(content["traceback"]))
            os.write(2, f"{trace}\n".encode("utf-8", "backslashreplace"))
            name = "KeyboardInterrupt" if self._is_interrupted else content["ename"]
            self.say(ev="error", name=name, value=content["evalue"], traceback=trace)


def _filled(word: str, words: dict[str, str]) -> str:
    for name, value in words.items():
        word = word.replace(name, value)
    return word


if __name__ == "__main__":
    driver = Driver(*sys.argv[1:4])
    driver.start()
    driver.serve()
