"""Binary form of protobuf messages: tags, varints and lengths.

Own code of a page, because the clients send a dozen small messages and the library would be a
dependency of every installation. Each length is checked against the bytes that are there.
"""

from __future__ import annotations

import math
from typing import Any

from cellwall.apps.doors.e2b.daemon.connect.schema import (
    MOST_ITEMS,
    RANGES,
    Field,
    Malformed,
    Message,
    Value,
)

_VARINT, _I64, _LENGTH, _I32 = 0, 1, 2, 5
_FIXED_BYTES = {_I64: 8, _I32: 4}
_MOST_VARINT = 10
_NANOS = 1_000_000_000
_NUMBERS = frozenset({"bool", "uint32", "sint32", "int64", "enum"})


class _Count:
    """Fields of one request so far, those of the messages in it, too."""

    def __init__(self) -> None:
        self._fields = 0

    def one_more(self, where: str) -> None:
        self._fields += 1
        if self._fields > MOST_ITEMS:
            raise Malformed(f"{where}: more than {MOST_ITEMS} fields in one request")


class _Reader:
    """Bytes and a position in them."""

    def __init__(self, data: memoryview, where: str) -> None:
        self._data = data
        self._at = 0
        self._where = where

    @property
    def is_over(self) -> bool:
        return self._at >= len(self._data)

    def varint(self) -> int:
        value = 0
        for step in range(_MOST_VARINT):
            if self.is_over:
                raise Malformed(f"{self._where}: it ends within a number")
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << (7 * step)
            if byte < 0x80:
                return value & (2**64 - 1)
        raise Malformed(f"{self._where}: a number of more than {_MOST_VARINT} bytes")

    def take(self, size: int) -> memoryview:
        if size > len(self._data) - self._at:
            raise Malformed(f"{self._where}: {size} bytes are announced, and are not there")
        found = self._data[self._at : self._at + size]
        self._at += size
        return found


def decoded(message: Message, data: bytes | memoryview) -> Value:
    """Return the message in bytes. Raises Malformed."""
    return _message(message, memoryview(data), _Count())


def _message(message: Message, data: memoryview, count: _Count) -> Value:
    reader = _Reader(data, message.name)
    value: Value = {}
    while not reader.is_over:
        count.one_more(message.name)
        tag = reader.varint()
        number, wire = tag >> 3, tag & 7
        found = _payload(reader, wire, message.name)
        name = message.by_number.get(number)
        if name is not None:
            where = f"{message.name}.{name}"
            one = _one(message.fields[name], wire, found, where, count)
            _put(value, message, name, one)
    return value


def _payload(reader: _Reader, wire: int, where: str) -> int | memoryview:
    if wire == _VARINT:
        return reader.varint()
    if wire == _LENGTH:
        return reader.take(reader.varint())
    if wire in _FIXED_BYTES:
        return reader.take(_FIXED_BYTES[wire])
    raise Malformed(f"{where}: wire type {wire} is none that is used")


def _one(field: Field, wire: int, found: int | memoryview, where: str, count: _Count) -> Any:  # noqa: ANN401 - by the schema
    if wire != (_VARINT if field.kind in _NUMBERS else _LENGTH):
        raise Malformed(f"{where}: wire type {wire} is not its own")
    if isinstance(found, int):
        return _number(field, found)
    return _bytes(field, found, where, count)


def _put(value: Value, message: Message, name: str, one: Any) -> None:  # noqa: ANN401 - as read
    field = message.fields[name]
    if field.is_alternative:
        for other in [each for each in value if message.fields[each].is_alternative]:
            del value[other]
    if field.is_repeated:
        value.setdefault(name, []).append(one)
    elif field.kind == "map":
        value.setdefault(name, {}).update(one)
    else:
        value[name] = one


def _number(field: Field, found: int) -> int | bool:
    if field.kind == "bool":
        return found != 0
    if field.kind == "sint32":
        found &= 2**32 - 1
        return (found >> 1) ^ -(found & 1)
    low, high = RANGES[field.kind]
    found &= 2**64 - 1 if field.kind == "int64" else 2**32 - 1
    return found - (high - low + 1) if found > high else found


def _bytes(field: Field, found: memoryview, where: str, count: _Count) -> Any:  # noqa: ANN401 - by the schema
    if field.message is not None:
        return _message(field.message, found, count)
    if field.kind == "bytes":
        return bytes(found)
    if field.kind == "map":
        pair = _message(_PAIR, found, count)
        return {pair.get("key", ""): pair.get("value", "")}
    if field.kind == "timestamp":
        time = _message(_TIMESTAMP, found, count)
        return time.get("seconds", 0) + time.get("nanos", 0) / _NANOS
    try:
        return str(found, "utf-8")
    except UnicodeDecodeError:
        raise Malformed(f"{where}: not UTF-8") from None


# -- out ---------------------------------------------------------------------------------------


def encoded(message: Message, value: Value) -> bytes:
    """Return a message as bytes."""
    out = bytearray()
    for name, each in value.items():
        field = message.fields[name]
        if field.kind == "map":
            for key, text in each.items():
                _write(out, field, encoded(_PAIR, {"key": key, "value": text}))
        else:
            for one in each if field.is_repeated else (each,):
                _write(out, field, _raw(field, one))
    return bytes(out)


def _raw(field: Field, one: Any) -> int | bytes:  # noqa: ANN401 - by the schema
    if field.message is not None:
        return encoded(field.message, one)
    if field.kind == "string":
        return str(one).encode("utf-8", "replace")
    if field.kind == "timestamp":
        seconds = math.floor(one)
        nanos = min(_NANOS - 1, round((one - seconds) * _NANOS))
        return encoded(_TIMESTAMP, {"seconds": seconds, "nanos": nanos})
    if field.kind == "sint32":
        return int((one << 1) ^ (one >> 31)) & (2**32 - 1)
    if field.kind == "bytes":
        return bytes(one)
    return int(one) & (2**64 - 1)


def _write(out: bytearray, field: Field, raw: int | bytes) -> None:
    if isinstance(raw, int):
        _varint(out, field.number << 3 | _VARINT)
        _varint(out, raw)
    else:
        _varint(out, field.number << 3 | _LENGTH)
        _varint(out, len(raw))
        out += raw


def _varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


_PAIR = Message("map entry", {"key": Field(1, "string"), "value": Field(2, "string")})
_TIMESTAMP = Message("Timestamp", {"seconds": Field(1, "int64"), "nanos": Field(2, "enum")})
