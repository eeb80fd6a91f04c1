"""Scan: a static look at a source before it runs; advice for people and agents, not a boundary.

A program with no findings runs under the same isolation; a finding may be innocent. Pure and
bounded: Python by its syntax tree, with aliases and `from` imports resolved; shell and JavaScript
by patterns, line by line. The invariant: it never raises on a program, however broken.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_MOST = 100
_LONGEST = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding in a source."""

    rule: str
    """Stable name: `process`, `network`, `dynamic-code`, `files`, `native`, `deserialise`…"""
    line: int
    column: int
    """Line and column count from 1; 0 where there is no place."""
    message: str


_PYTHON: Mapping[str, tuple[str, str]] = {
    "os.system": ("process", "starts a shell"),
    "os.popen": ("process", "starts a shell"),
    "os.fork": ("process", "makes a process"),
    "os.kill": ("process", "signals a process"),
    "os.exec": ("process", "becomes another program"),
    "os.spawn": ("process", "starts a program"),
    "os.posix_spawn": ("process", "starts a program"),
    "subprocess": ("process", "starts a program"),
    "multiprocessing": ("process", "makes processes"),
    "pty": ("process", "starts a program on a terminal"),
    "socket": ("network", "opens a socket"),
    "urllib.request": ("network", "fetches an address"),
    "http.client": ("network", "fetches an address"),
    "requests": ("network", "fetches an address"),
    "httpx": ("network", "fetches an address"),
    "aiohttp": ("network", "fetches an address"),
    "ftplib": ("network", "speaks FTP"),
    "smtplib": ("network", "sends mail"),
    "builtins.eval": ("dynamic-code", "evaluates text as code"),
    "builtins.exec": ("dynamic-code", "runs text as code"),
    "builtins.compile": ("dynamic-code", "compiles text as code"),
    "builtins.__import__": ("dynamic-code", "imports by name"),
    "importlib": ("dynamic-code", "imports by name"),
    "ctypes": ("native", "calls native code"),
    "cffi": ("native", "calls native code"),
    "pickle.load": ("deserialise", "unpickles, which runs code"),
    "pickle.loads": ("deserialise", "unpickles, which runs code"),
    "marshal.loads": ("deserialise", "loads code objects"),
    "shelve.open": ("deserialise", "unpickles, which runs code"),
    "shutil.rmtree": ("files", "removes a tree"),
    "os.remove": ("files", "removes a file"),
    "os.unlink": ("files", "removes a file"),
    "os.rmdir": ("files", "removes a directory"),
    "os.chmod": ("files", "changes rights"),
    "os.environ": ("environment", "reads the environment"),
    "os.getenv": ("environment", "reads the environment"),
}
"""Rules by full name; a name that is a prefix (`os.exec` for `os.execv`) covers functions of os."""
_PREFIXES = ("os.exec", "os.spawn")

_SHELL: tuple[tuple[str, str, str], ...] = (
    (r"\brm\s+(?:-\w+\s+)*-\w*[rf]", "files", "removes by force"),
    (r"\b(?:curl|wget|nc|ncat|telnet|ssh|scp)\b", "network", "speaks to the network"),
    (r"/dev/(?:tcp|udp)/", "network", "opens a socket"),
    (r"\b(?:curl|wget)\b[^|\n]*\|\s*(?:ba|z|da)?sh\b", "dynamic-code", "runs what it fetches"),
    (r"\beval\b", "dynamic-code", "evaluates text as code"),
    (r"\b(?:sudo|su|chroot|nsenter|unshare)\b", "privilege", "asks for other rights"),
    (r":\s*\(\s*\)\s*\{.*\}\s*;\s*:", "process", "looks like a fork bomb"),
    (r"\bchmod\s+[0-7]*[4-7][0-7]{3}\b|\bchmod\s+\+s\b", "privilege", "sets a setuid bit"),
    (r"\bmkfs|\bdd\s+[^\n]*of=/dev/", "files", "writes to a device"),
)
_SCRIPT: tuple[tuple[str, str, str], ...] = (
    (r"child_process", "process", "starts a program"),
    (r"\b(?:eval|Function)\s*\(", "dynamic-code", "evaluates text as code"),
    (r"['\"](?:node:)?(?:net|dgram|tls|http|https|http2)['\"]", "network", "opens a socket"),
    (r"\bfetch\s*\(|\bXMLHttpRequest\b|\bWebSocket\s*\(", "network", "fetches an address"),
    (r"\b(?:rmSync|rmdirSync|unlinkSync|unlink|rm)\s*\(", "files", "removes files"),
    (r"\bprocess\.(?:kill|binding|dlopen)\b", "native", "reaches below the runtime"),
    (r"\bprocess\.env\b", "environment", "reads the environment"),
    (r"['\"](?:node:)?(?:vm|worker_threads|cluster)['\"]", "dynamic-code", "runs code apart"),
)
_PATTERNS = {"bash": _SHELL, "javascript": _SCRIPT}


def scan(source: str, language: str) -> list[Finding]:
    """Return the findings of a source, in order of lines, at most 100."""
    if len(source) > _LONGEST:
        return [Finding("too-long", 0, 0, "longer than 1 MiB; it was not looked at")]
    if language == "python":
        found = _scan_python(source)
    else:
        found = list(_scan_lines(source, _PATTERNS.get(language, ())))
    return sorted(set(found), key=lambda each: (each.line, each.column, each.rule))[:_MOST]


def _scan_lines(source: str, patterns: tuple[tuple[str, str, str], ...]) -> Iterator[Finding]:
    compiled = [(re.compile(pattern), rule, message) for pattern, rule, message in patterns]
    for number, line in enumerate(source.splitlines(), 1):
        for pattern, rule, message in compiled:
            if match := pattern.search(line[:4096]):
                yield Finding(rule, number, match.start() + 1, message)


def _scan_python(source: str) -> list[Finding]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 0
        # A notebook cell may hold magics, which are not Python; they start programs.
        magics = _scan_lines(source, ((r"^\s*[!%]\s*\w", "process", "a magic or a shell line"),))
        return [*magics, Finding("syntax", line, 0, "not plain Python; it was not looked at")]
    looker = _Looker()
    try:
        looker.visit(tree)
    except RecursionError:
        looker.found.append(Finding("syntax", 0, 0, "nested too deeply to be looked at"))
    return looker.found


class _Looker(ast.NodeVisitor):
    """Visitor of a syntax tree that tracks what each local name stands for."""

    def __init__(self) -> None:
        self.found: list[Finding] = []
        self._names: dict[str, str] = {}

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.asname is not None:
                self._names[alias.asname] = alias.name
            else:
                top = alias.name.partition(".")[0]
                self._names[top] = top
            self._report(alias.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level == 0 and node.module is not None:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                self._names[alias.asname or alias.name] = full
                self._report(full, node)

    def visit_Assign(self, node: ast.Assign) -> None:
        full = self._full_name(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name):
                if full is not None:
                    self._names[target.id] = full
                else:
                    self._names.pop(target.id, None)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._report(self._full_name(node), node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        full = self._full_name(node)
        if full is None:
            self.generic_visit(node)
        else:
            self._report(full, node)

    def visit_Call(self, node: ast.Call) -> None:
        full = self._full_name(node.func)
        if full in {"builtins.getattr", "builtins.__import__"} and node.args:
            last = node.args[-1] if full == "builtins.getattr" else node.args[0]
            if full == "builtins.getattr" and len(node.args) > 1:
                last = node.args[1]
            if isinstance(last, ast.Constant) and isinstance(last.value, str):
                base = self._full_name(node.args[0]) if full == "builtins.getattr" else None
                self._report(f"{base}.{last.value}" if base else last.value, node)
        self.generic_visit(node)

    def _full_name(self, node: ast.expr) -> str | None:
        """Return what a name or attribute stands for, or None if that is not known."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id) or f"builtins.{node.id}"
        if isinstance(node, ast.Attribute):
            base = self._full_name(node.value)
            return None if base is None else f"{base}.{node.attr}"
        return None

    def _report(self, full: str | None, node: ast.stmt | ast.expr) -> None:
        rule = None if full is None else _rule_of(full)
        if rule is not None and len(self.found) < _MOST:
            name = str(full).removeprefix("builtins.")
            self.found.append(
                Finding(rule[0], node.lineno, node.col_offset + 1, f"{name}: {rule[1]}")
            )


def _rule_of(full: str) -> tuple[str, str] | None:
    parts = full.split(".")
    for length in range(len(parts), 0, -1):
        rule = _PYTHON.get(".".join(parts[:length]))
        if rule is not None:
            return rule
    for prefix in _PREFIXES:
        if full.startswith(prefix):
            return _PYTHON[prefix]
    return None
