"""A unified diff of two versions of a text, within a fixed amount of work.

Not `difflib`, whose time grows with the cube of what hostile texts can hold: this is the greedy
algorithm of Myers ("An O(ND) difference algorithm", 1986), given up beyond `_MOST_EDITS`; what lies
between the common beginning and end then counts as replaced. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

MOST_BYTES = 1 << 20
"""Largest version that is compared."""
MOST_CHARACTERS = 256 * 1024
"""Longest diff; what is beyond it is cut, and said so."""
_MOST_EDITS = 400
_MOST_LINES = 50_000

_Op = tuple[str, int, int, int, int]
"""`equal` or `replace`, and the lines: begin and end before, begin and end after."""


def unified(before: bytes | None, after: bytes | None, path: str, context: int = 3) -> str:
    """Return a unified diff; a file that is not there is None."""
    if before == after:
        return ""
    if b"\0" in (before or b"") or b"\0" in (after or b""):
        return f"Binary files differ: {path}\n"
    old, new = _lines(before or b""), _lines(after or b"")
    if max(len(old), len(new)) > _MOST_LINES:
        return f"Files differ, and are too long to be compared by lines: {path}\n"
    text = [
        f"--- {'/dev/null' if before is None else f'a/{path}'}\n",
        f"+++ {'/dev/null' if after is None else f'b/{path}'}\n",
    ]
    size = sum(map(len, text))
    for line in _hunks(old, new, context):
        size += len(line)
        if size > MOST_CHARACTERS:
            text.append("... the rest of this diff is left out\n")
            break
        text.append(line)
    return "".join(text)


def _lines(data: bytes) -> list[str]:
    text = data.decode("utf-8", "replace")
    found = text.split("\n")
    last = found.pop()
    lines = [f"{line}\n" for line in found]
    return [*lines, f"{last}\n\\ No newline at end of file\n"] if last else lines


def _hunks(old: list[str], new: list[str], context: int) -> Iterator[str]:
    group: list[_Op] = []
    ops = _ops(old, new)
    for index, op in enumerate(ops):
        tag, i1, i2, j1, j2 = op
        if tag != "equal":
            group.append(op)
            continue
        is_last = index == len(ops) - 1
        if group and (is_last or i2 - i1 > 2 * context):
            group.append((tag, i1, min(i2, i1 + context), j1, min(j2, j1 + context)))
            yield from _hunk(group, old, new)
            group = []
        if not is_last and (group or i2 - i1 <= 2 * context) and index:
            group.append(op)
        elif not is_last:
            group = [(tag, max(i1, i2 - context), i2, max(j1, j2 - context), j2)]
    if any(op[0] != "equal" for op in group):
        yield from _hunk(group, old, new)


def _hunk(group: list[_Op], old: list[str], new: list[str]) -> Iterator[str]:
    i1, i2, j1, j2 = group[0][1], group[-1][2], group[0][3], group[-1][4]
    yield f"@@ -{_range(i1, i2)} +{_range(j1, j2)} @@\n"
    for tag, a1, a2, b1, b2 in group:
        if tag == "equal":
            yield from (f" {line}" for line in old[a1:a2])
        else:
            yield from (f"-{line}" for line in old[a1:a2])
            yield from (f"+{line}" for line in new[b1:b2])


def _range(start: int, end: int) -> str:
    length = end - start
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"


def _ops(old: list[str], new: list[str]) -> list[_Op]:
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    middle_old, middle_new = old[head : len(old) - tail], new[head : len(new) - tail]
    pairs = [(at, at) for at in range(head)]
    pairs += [(head + i, head + j) for i, j in _matches(middle_old, middle_new)]
    pairs += [(len(old) - tail + at, len(new) - tail + at) for at in range(tail)]
    return _as_ops(pairs, len(old), len(new))


def _common(old: list[str], new: list[str]) -> int:
    count = 0
    for one, other in zip(old, new, strict=False):
        if one != other:
            break
        count += 1
    return count


def _as_ops(pairs: list[tuple[int, int]], old: int, new: int) -> list[_Op]:
    found: list[_Op] = []
    i = j = 0
    for at, other in [*pairs, (old, new)]:
        if (at, other) != (i, j):
            found.append(("replace", i, at, j, other))
        if at < old and other < new:
            if found and found[-1][0] == "equal" and found[-1][2] == at and found[-1][4] == other:
                found[-1] = ("equal", found[-1][1], at + 1, found[-1][3], other + 1)
            else:
                found.append(("equal", at, at + 1, other, other + 1))
        i, j = at + 1, other + 1
    return found


def _matches(old: list[str], new: list[str]) -> list[tuple[int, int]]:
    """Return the pairs of lines that stay, nothing if there are more edits than are looked for."""
    if not old or not new:
        return []
    numbers: dict[str, int] = {}
    a = [numbers.setdefault(line, len(numbers)) for line in old]
    b = [numbers.setdefault(line, len(numbers)) for line in new]
    reached = {1: 0}
    trail: list[dict[int, int]] = []
    for edits in range(min(_MOST_EDITS, len(a) + len(b)) + 1):
        trail.append(dict(reached))
        for k in range(-edits, edits + 1, 2):
            is_down = k == -edits or (k != edits and reached[k - 1] < reached[k + 1])
            x = reached[k + 1] if is_down else reached[k - 1] + 1
            while x < len(a) and x - k < len(b) and a[x] == b[x - k]:
                x += 1
            reached[k] = x
            if x >= len(a) and x - k >= len(b):
                return _walked_back(trail, len(a), len(b))
    return []


def _walked_back(trail: list[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    found = []
    for edits in range(len(trail) - 1, -1, -1):
        reached = trail[edits]
        k = x - y
        is_down = k == -edits or (k != edits and reached[k - 1] < reached[k + 1])
        k_before = k + 1 if is_down else k - 1
        x_before = reached[k_before]
        y_before = x_before - k_before
        while x > max(x_before, 0) and y > max(y_before, 0):
            x, y = x - 1, y - 1
            found.append((x, y))
        x, y = x_before, y_before
    return found[::-1]
