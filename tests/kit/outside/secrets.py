"""What tests of secrets share: the value, a program that asks, and a server that repeats."""

from __future__ import annotations

import json

from kit.outside.servers import WebServer

VALUE = "sk-proj-thisIsTheValueThatNoSandboxSees0123"

ASK = '''
import base64, json, os, urllib.error, urllib.request
KEY = os.environ["API_KEY"]
def ask(url, headers=None, data=None):
    """Status and text of an answer, its header fields among it; or the error."""
    try:
        request = urllib.request.Request(url, data, headers or {})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return f"{answer.status} {answer.headers} {answer.read().decode()}"
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode()}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
'''


class Mirror(WebServer):
    """A server that repeats what it was asked, in a header field and in its body."""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Return the fields of the request, and its body."""
        _, _, fields = self.requests[-1]
        said = json.dumps({**fields, "path": path, "body": body.decode()})
        if path.startswith("/compressed"):
            return 200, {"Content-Encoding": "gzip"}, said.encode()
        if path in self.redirects:
            return 302, {"Location": self.redirects[path]}, b""
        return 200, {"X-Echo": fields.get("X-Key", "")}, said.encode()
