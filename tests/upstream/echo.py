"""The template `httpbin` of the suites: a server that repeats the header fields of a request.

E2B's is a program from the Internet; this one answers the one request that the suites send to it,
`GET /headers`, in its form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from e2b import Template

from kit.images.archives import layer, member
from kit.images.real import PATH, packaged

if TYPE_CHECKING:
    from kit.server.e2b_templates import Workshop

_NAME, _IMAGE, _PORT = "httpbin", "team/echo:1", 8080
_PROGRAMS = ("/bin/bash", "/bin/sh", "/usr/bin/python3")
_SERVER = f"""
import http.server, json

class Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        fields = {{name.title(): self.headers.get_all(name) for name in self.headers}}
        body = json.dumps({{"headers": fields}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

http.server.ThreadingHTTPServer(("", {_PORT}), Echo).serve_forever()
""".encode()
_READY = f"python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {_PORT}))'"


def build(shop: Workshop, options: dict[str, Any]) -> None:
    """Build it by E2B's SDK, whose `options` say where."""
    members = [*packaged(_PROGRAMS), member("srv/echo.py", _SERVER)]
    shop.stocked.add(_IMAGE, [layer(members)], Env=[PATH])
    made = Template().from_image(shop.stocked.name(_IMAGE))
    ready = made.set_start_cmd("python3 /srv/echo.py", _READY)
    Template.build(ready, _NAME, **options)
