"""DNS inside a sandbox: the answers to its questions, all made here.

No question of a sandbox goes to another name server as it came, so that nothing can be carried out
in one: only a name that the policy allows is resolved, by our own question. The answer is an
address made up for the name (`names`); AAAA has an empty answer, which sends clients to IPv4. Other
types exist for no name.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import dns.exception
import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from cellwall.egress.proxy.naming.resolver import Busy, NoSuchName

if TYPE_CHECKING:
    from cellwall.egress.proxy.sandbox_network import SandboxNetwork

MOST_BYTES = 4096
"""Most bytes of a question."""
_MOST_TOLD = 512
"""Most answers of one sandbox that are kept."""
TTL_S = 5
"""Seconds for which a client may keep an answer; the address stays the same after that."""


def told(network: SandboxNetwork, question: bytes) -> bytes | None:
    """Return the answer that was given to the same question and holds, if there is one."""
    known = network.told.get(question[2:])
    if known is None or time.monotonic() >= known[0]:
        return None
    return question[:2] + known[1]


async def answer(network: SandboxNetwork, question: bytes) -> bytes | None:
    """Return the answer to one message, or None if it is no question at all."""
    known = told(network, question)
    if known is not None:
        return known
    policy = network.policy
    reply, is_kept = await _answer(network, question)
    if reply is not None and is_kept and network.policy is policy:
        if len(network.told) >= _MOST_TOLD:
            network.told.clear()
        network.told[question[2:]] = (time.monotonic() + TTL_S, reply[2:])
    return reply


async def _answer(network: SandboxNetwork, question: bytes) -> tuple[bytes | None, bool]:
    """Return the answer, and whether the same question may get the same one for `TTL_S`."""
    try:
        asked = dns.message.from_wire(question, ignore_trailing=False)
    except dns.exception.DNSException:
        return None, False
    if asked.flags & dns.flags.QR:
        return None, False
    reply = dns.message.make_response(asked, recursion_available=True)
    if asked.opcode() != dns.opcode.QUERY or len(asked.question) != 1:
        reply.set_rcode(dns.rcode.NOTIMP)
        return reply.to_wire(), False
    (one,) = asked.question
    if one.rdclass != dns.rdataclass.IN:
        reply.set_rcode(dns.rcode.REFUSED)
        return reply.to_wire(), False
    name = one.name.to_text(omit_final_dot=True).lower()
    is_kept = False
    try:
        address = await network.made_up_address(name)
    except NoSuchName:
        reply.set_rcode(dns.rcode.NXDOMAIN)
    except Busy:
        reply.set_rcode(dns.rcode.SERVFAIL)
    else:
        is_kept = True
        if one.rdtype == dns.rdatatype.A:
            reply.answer.append(dns.rrset.from_text(one.name, TTL_S, "IN", "A", address))
    return reply.to_wire(), is_kept
