"""Random generators that were alive before the fork, and fresh seeds for them after it.

`collect` is called in the fork-server after the preload and before `gc.freeze`, which would hide
them; `apply` in every context process. It does not touch `os.urandom`, `secrets` or generators
made after the fork: those differ by themselves.

Without `apply` every sandbox of a template draws the same "random" numbers, and one tenant can
predict another's.
"""

from __future__ import annotations

import gc
import os
import random
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

_SEED_BYTES = 32

_plain: list[random.Random] = []
_numpy_states: list[Any] = []
_numpy_bits: list[Any] = []


def collect() -> int:
    """Find every generator made since the last `gc.freeze`; returns how many are known."""
    numpy_random = sys.modules.get("numpy.random")
    state_type = getattr(numpy_random, "RandomState", ())
    bits_type = getattr(numpy_random, "BitGenerator", ())
    for thing in gc.get_objects():
        # type(), not isinstance(): a lazy proxy's __class__ may import half a library.
        kind = type(thing)
        if issubclass(kind, random.Random):
            if not issubclass(kind, random.SystemRandom):
                _add(_plain, thing)
        elif state_type and issubclass(kind, state_type):
            _add(_numpy_states, thing)
        elif bits_type and issubclass(kind, bits_type):
            # A Generator only borrows its bit generator, which is what holds the state.
            _add(_numpy_bits, thing)
    return len(_plain) + len(_numpy_states) + len(_numpy_bits)


def _add(found: list[Any], thing: object) -> None:
    # By identity: what a generator makes of == is its own affair.
    if not any(thing is each for each in found):
        found.append(thing)


def apply() -> None:
    """Give every collected generator, and the global ones, a seed of this process alone."""
    global_one = random._inst
    for generator in [global_one, *(g for g in _plain if g is not global_one)]:
        # Not generator.seed: a subclass may make of it what it likes.
        random.Random.seed(generator, int.from_bytes(os.urandom(_SEED_BYTES), "little"))
    if "numpy.random" not in sys.modules:
        return
    numpy_random: Any = sys.modules["numpy.random"]
    for bits in _numpy_bits:
        _renew_bits(bits)
    global_state = numpy_random.mtrand._rand
    for state in [global_state, *(s for s in _numpy_states if s is not global_state)]:
        _renew_state(state)


def _renew_bits(bits: Any) -> None:  # noqa: ANN401  numpy's, which this file never imports
    bits.state = type(bits)(int.from_bytes(os.urandom(_SEED_BYTES), "little")).state


def _renew_state(state: Any) -> None:  # noqa: ANN401  likewise
    bits = state._bit_generator
    if type(bits).__name__ == "MT19937":
        # Also forgets the half of a Gaussian pair that is kept for the next call.
        state.seed(list(os.urandom(_SEED_BYTES)))
        return
    fresh = type(bits)(int.from_bytes(os.urandom(_SEED_BYTES), "little"))
    renewed = dict(fresh.state, has_gauss=0, gauss=0.0)
    state.set_state(renewed)
