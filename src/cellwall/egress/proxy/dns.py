"""DNS inside a sandbox: the answers to its questions, all made here.

No question of a sandbox goes to another name server as it came, so that nothing can be carried out
in one: only a name that the policy allows is resolved, by our own question. The answer is an
address made up for the name (`names`); AAAA has an empty answer, which sends clients to IPv4. Other
types exist for no name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import dns.exception
import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from cellwall.egress.proxy.resolver import Busy, NoSuchName

if TYPE_CHECKING:
    from cellwall.egress.proxy.sandbox_network import SandboxNetwork

MOST_BYTES = 4096
"""Most bytes of a question."""
TTL_S = 5
"""Seconds for which a client may keep an answer; the address stays the same after that."""


async def answer(network: SandboxNetwork, question: bytes) -> bytes | None:
    """Return the answer to one message, or None if it is no question at all."""
    try:
        asked = dns.message.from_wire(question, ignore_trailing=False)
    except dns.exception.DNSException:
        return None
    if asked.flags & dns.flags.QR:
        return None
    reply = dns.message.make_response(asked, recursion_available=True)
    if asked.opcode() != dns.opcode.QUERY or len(asked.question) != 1:
        reply.set_rcode(dns.rcode.NOTIMP)
        return reply.to_wire()
    (one,) = asked.question
    if one.rdclass != dns.rdataclass.IN:
        reply.set_rcode(dns.rcode.REFUSED)
        return reply.to_wire()
    name = one.name.to_text(omit_final_dot=True).lower()
    try:
        address = await network.made_up_address(name)
    except NoSuchName:
        reply.set_rcode(dns.rcode.NXDOMAIN)
    except Busy:
        reply.set_rcode(dns.rcode.SERVFAIL)
    else:
        if one.rdtype == dns.rdatatype.A:
            reply.answer.append(dns.rrset.from_text(one.name, TTL_S, "IN", "A", address))
    return reply.to_wire()
