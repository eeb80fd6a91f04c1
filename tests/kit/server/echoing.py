"""A server inside a sandbox that says what it was asked, or whatever its path tells it to say.

For the tests of ports; it speaks HTTP and WebSockets, rightly and wrongly.
"""

from __future__ import annotations

import textwrap
import time

from kit.servers import Server, new_sandbox

ECHO = """
import base64, hashlib, http.server, json, os, socketserver, threading

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def answer(self):
        if self.headers.get("Upgrade", "").lower() == "websocket":
            return self.socket()
        if self.path == "/silent": threading.Event().wait()
        if self.path.startswith("/raw/"):
            self.wfile.write(bytes.fromhex(self.path[5:])); self.close_connection = True; return
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if self.path.startswith("/redirect"):
            self.send_response(302); self.send_header("Location", "/there?x=1")
            self.send_header("Content-Length", "0"); self.end_headers(); return
        if self.path == "/stream":
            self.send_response(200); self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for n in range(3):
                self.wfile.write(b"2\\r\\n%d\\n\\r\\n" % n); self.wfile.flush()
            self.wfile.write(b"0\\r\\n\\r\\n"); return
        if self.path == "/split":
            self.wfile.write(b"HTTP/1.1 200 OK\\r\\nX-App-A: b\\x01c\\r\\n"
                             b"Content-Length: 0\\r\\n\\r\\n")
            return
        if self.path == "/nonsense":
            self.wfile.write(b"SSH-2.0-nothing\\r\\n\\r\\n"); self.close_connection = True; return
        text = json.dumps({"method": self.command, "path": self.path, "size": len(body),
                           "headers": {k.lower(): v for k, v in self.headers.items()}}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Set-Cookie", "a=b")
        self.send_header("Access-Control-Allow-Origin", "*")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = answer
    def socket(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.wfile.write((
            "HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\n"
            f"Connection: Upgrade\\r\\nSec-WebSocket-Accept: {accept}\\r\\n\\r\\n").encode())
        self.close_connection = True
        while True:
            head = self.rfile.read(2)
            if len(head) < 2: return
            size = head[1] & 127
            if size == 126: size = int.from_bytes(self.rfile.read(2), "big")
            mask = self.rfile.read(4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(size)))
            if head[0] & 15 == 8:
                self.wfile.write(bytes([0x88, len(data)]) + data); return
            if head[0] & 15 == 2 and data[:6] == b"close:":
                self.wfile.write(bytes([0x88, len(data) - 6]) + data[6:]); return
            if data == b"break off": return
            self.wfile.write(bytes([head[0], len(data)]) + data); self.wfile.flush()

class Server(socketserver.ThreadingMixIn, http.server.HTTPServer): daemon_threads = True
print(json.dumps(dict(os.environ)), flush=True)
Server(("127.0.0.1", 8000), Handler).serve_forever()
"""


def served(server: Server) -> tuple[str, str]:
    """Return the path of a server inside, and its environment."""
    client = server.client()
    sandbox = f"/sandboxes/{new_sandbox(client)}"
    source = textwrap.dedent(ECHO)
    client.put(f"{sandbox}/files", params={"path": "echo.py"}, content=source).raise_for_status()
    made = client.post(
        f"{sandbox}/commands", json={"argv": ["python", "echo.py"], "background": True}
    ).json()
    deadline = time.monotonic() + 20
    while client.get(f"{sandbox}/ports/8000/").status_code == 502:
        assert time.monotonic() < deadline
    with client.stream("GET", f"{sandbox}/commands/{made['id']}/events") as answer:
        environment = next(answer.iter_lines())
    return f"{sandbox}/ports/8000", environment


def raw(answer: bytes) -> str:
    """Return a path at which the server inside says just that."""
    return f"/raw/{answer.hex()}"
