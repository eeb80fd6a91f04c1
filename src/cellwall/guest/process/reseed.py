"""Random generators that existed before the fork, and fresh seeds for them after it.

`collect` is called in the fork-server after the preload and before `gc.freeze`, which would hide
them; `apply` in every context process. It does not touch `os.urandom`, `secrets` or generators made
after the fork: those differ by themselves.

Without `apply` every sandbox of a template draws the same "random" numbers, and one
tenant can predict another's.
"""

from __future__ import annotations

import _random
import ctypes
import gc
import os
import random
import sys
from typing import Any, NamedTuple

_SEED_BYTES = 32
_seed = _random.Random.seed
_number_of = int.from_bytes

_MT19937_KEY_BYTES = 624 * 4
"""Bytes of the 624 words in numpy's mt19937_state; after them comes the position, a C int."""
_MT19937_SPENT = ctypes.c_int(624)
"""Position at which the next number makes the generator stir its words first."""


class _Key(NamedTuple):
    """A generator that must stay alive, and the addresses of its words and its position."""

    bits: Any
    words: ctypes.c_void_p
    position: ctypes.c_void_p


_plain: list[random.Random] = [random._inst]
_numpy_states: list[Any] = []
_numpy_bits: list[Any] = []
_numpy_keys: dict[int, _Key] = {}
"""Generators by address whose words are renewed without numpy's help."""


def collect() -> int:
    """Find every generator made since the last `gc.freeze`; return how many are known."""
    numpy_random = sys.modules.get("numpy.random")
    state_type = getattr(numpy_random, "RandomState", ())
    bits_type = getattr(numpy_random, "BitGenerator", ())
    for thing in gc.get_objects():
        # Use type(), not isinstance(): a lazy proxy's __class__ may import half a library.
        kind = type(thing)
        if issubclass(kind, random.Random):
            if not issubclass(kind, random.SystemRandom):
                _add(_plain, thing)
        elif state_type and issubclass(kind, state_type):
            _add(_numpy_states, thing)
        elif bits_type and issubclass(kind, bits_type):
            # A Generator only borrows its bit generator, which holds the state.
            _add(_numpy_bits, thing)
    _split_off_keys()
    return len(_plain) + len(_numpy_states) + len(_numpy_bits) + len(_numpy_keys)


def _split_off_keys() -> None:
    """Note the addresses of MT19937 generators' words; numpy's own seeding touches thirty pages."""
    if "numpy.random" not in sys.modules:
        return
    global_state: Any = sys.modules["numpy.random"].mtrand._rand
    _add(_numpy_states, global_state)
    for found in (_numpy_states, _numpy_bits):
        for thing in found[:]:
            bits = getattr(thing, "_bit_generator", thing)
            address = _mt19937_address(bits)
            if address is None:
                continue
            if thing is not bits:
                # Forget the half of a Gaussian pair that is kept for the next call.
                thing.set_state({**thing.get_state(legacy=False), "has_gauss": 0, "gauss": 0.0})
            found.remove(thing)
            position = ctypes.c_void_p(address + _MT19937_KEY_BYTES)
            _numpy_keys[address] = _Key(bits, ctypes.c_void_p(address), position)


def _mt19937_address(bits: Any) -> int | None:  # noqa: ANN401  numpy's, which this file never imports
    """Return the address of the words, if they are really there."""
    if type(bits).__name__ != "MT19937":
        return None
    address = int(bits.ctypes.state_address)
    state = bits.state["state"]
    expected = state["key"].tobytes() + int(state["pos"]).to_bytes(4, sys.byteorder)
    return address if ctypes.string_at(address, len(expected)) == expected else None


def _add(found: list[Any], thing: object) -> None:
    # By identity: a generator may define == as it likes.
    if not any(thing is each for each in found):
        found.append(thing)


def apply() -> None:
    """Give every collected generator, and the global ones, a seed of this process alone."""
    for generator in _plain:
        # What random.Random.seed does for a number, in the C class under it. Not generator.seed: a
        # subclass may have replaced that.
        _seed(generator, _number_of(os.urandom(_SEED_BYTES), "little"))
        generator.gauss_next = None  # type: ignore[attr-defined]  # typeshed lacks it
    for _bits, words, position in _numpy_keys.values():
        ctypes.memmove(words, os.urandom(_MT19937_KEY_BYTES), _MT19937_KEY_BYTES)
        ctypes.memmove(position, ctypes.byref(_MT19937_SPENT), 4)
    for bits in _numpy_bits:
        _renew_bits(bits)
    for state in _numpy_states:
        _renew_state(state)


def _renew_bits(bits: Any) -> None:  # noqa: ANN401  numpy's, which this file never imports
    bits.state = type(bits)(int.from_bytes(os.urandom(_SEED_BYTES), "little")).state


def _renew_state(state: Any) -> None:  # noqa: ANN401  likewise
    bits = state._bit_generator
    fresh = type(bits)(int.from_bytes(os.urandom(_SEED_BYTES), "little"))
    renewed = dict(fresh.state, has_gauss=0, gauss=0.0)
    state.set_state(renewed)
