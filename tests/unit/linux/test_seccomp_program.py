"""The compiled program against an independent reading of the same text, number by number."""

from __future__ import annotations

import errno
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.jail.plan import plan
from cellwall.linux import seccomp
from cellwall.linux.syscalls import bpf
from kit.jail import seccomp_model

POLICY = seccomp.load_policy()
ARCHES = sorted(seccomp.AUDIT_ARCH)
MODELS = {arch: seccomp_model.read(POLICY, arch) for arch in ARCHES}
PROGRAMS = {arch: seccomp.compile_policy(POLICY, arch) for arch in ARCHES}
WORD = st.integers(0, 2**64 - 1)
NUMBER = st.one_of(st.integers(0, 600), st.integers(0, 2**32 - 1))
INTERESTING = sorted(set(seccomp_model.constants(POLICY).values()))
ARGUMENT = st.one_of(st.sampled_from(INTERESTING), st.integers(0, 40), WORD)


@pytest.mark.parametrize("arch", ARCHES)
def test_program_agrees_with_the_model_on_every_edge(arch: str) -> None:
    code = bpf.unpack(PROGRAMS[arch])
    for case in seccomp_model.boundary_inputs(MODELS[arch]):
        got = bpf.evaluate(code, bpf.seccomp_data(*case))
        assert seccomp_model.as_verdict(got) == MODELS[arch].decide(*case), case


@pytest.mark.parametrize("arch", ARCHES)
def test_where_nobody_counts_memory_four_calls_more_are_missing(arch: str) -> None:
    refusals = seccomp.load_policy(plan.UNCOUNTED)
    code = bpf.unpack(seccomp.compile_policy(POLICY, arch, refusals))
    missing = {"memfd_create", "shmget", "semget", "msgget"}
    seen: set[str] = set()
    for case in seccomp_model.boundary_inputs(MODELS[arch]):
        got = seccomp_model.as_verdict(bpf.evaluate(code, bpf.seccomp_data(*case)))
        name = MODELS[arch].names.get(case[1], "")
        is_ours = case[0] == seccomp.AUDIT_ARCH[arch] and name in missing
        seen.update({name} if is_ours else ())
        assert got == ("ENOSYS" if is_ours else MODELS[arch].decide(*case)), case
    assert seen == missing


@pytest.mark.parametrize("arch", ARCHES)
def test_call_can_seem_to_be_missing_while_all_others_are_the_kernels(arch: str) -> None:
    names = ("membarrier", "getcpu")
    program = seccomp.refusing(names, arch)
    numbers = seccomp.syscall_numbers(arch)
    for number in (*range(600), 2**32 - 1):
        expected = seccomp.RET_ALLOW
        if number in [numbers[name] for name in names]:
            expected = seccomp.RET_ERRNO | errno.ENOSYS
        assert seccomp.evaluate(program, seccomp.AUDIT_ARCH[arch], number, ()) == expected
    foreign = next(audit for name, audit in seccomp.AUDIT_ARCH.items() if name != arch)
    assert seccomp.evaluate(program, foreign, numbers[names[0]], ()) == seccomp.RET_ALLOW


def test_what_refuses_besides_allows_nothing() -> None:
    with pytest.raises(seccomp.PolicyError, match="ptrace is allowed there; only refuse"):
        seccomp.compile_policy(POLICY, "x86_64", "allow ptrace")


@pytest.mark.parametrize("arch", ARCHES)
def test_every_instruction_is_visited_and_every_branch_taken_both_ways(arch: str) -> None:
    code = bpf.unpack(PROGRAMS[arch])
    visited: set[int] = set()
    branches: set[tuple[int, int]] = set()
    for case in seccomp_model.boundary_inputs(MODELS[arch]):
        path: list[int] = []
        bpf.evaluate(code, bpf.seccomp_data(*case), path)
        visited.update(path)
        branches.update(itertools.pairwise(path))
    assert visited == set(range(len(code)))
    assert _every_branch(code) - branches == set()


def _every_branch(code: list[bpf.Instruction]) -> set[tuple[int, int]]:
    tests = [
        (at, each) for at, each in enumerate(code) if each.code in (bpf.JEQ, bpf.JGE, bpf.JSET)
    ]
    return {(at, at + 1 + way) for at, each in tests for way in (each.jt, each.jf)}


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(ARCHES), NUMBER, st.tuples(*[ARGUMENT] * 6))
def test_program_agrees_with_the_model_on_anything(
    arch: str, nr: int, args: tuple[int, ...]
) -> None:
    audit = seccomp.AUDIT_ARCH[arch]
    got = seccomp.evaluate(PROGRAMS[arch], audit, nr, args)
    assert seccomp_model.as_verdict(got) == MODELS[arch].decide(audit, nr, args)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(ARCHES), st.integers(0, 2**32 - 1), NUMBER)
def test_foreign_architecture_is_killed(arch: str, audit: int, nr: int) -> None:
    if audit != seccomp.AUDIT_ARCH[arch]:
        assert seccomp.evaluate(PROGRAMS[arch], audit, nr, ()) == seccomp.RET_KILL_PROCESS


@pytest.mark.parametrize("arch", ARCHES)
def test_upper_half_of_an_argument_changes_nothing(arch: str) -> None:
    code = bpf.unpack(PROGRAMS[arch])
    for audit, nr, args in seccomp_model.boundary_inputs(MODELS[arch]):
        low = bpf.evaluate(code, bpf.seccomp_data(audit, nr, args))
        pointers = seccomp_model.pointers(MODELS[arch], nr)
        high = tuple(
            value if arg in pointers else value ^ 0xFFFFFFFF << 32 for arg, value in enumerate(args)
        )
        assert bpf.evaluate(code, bpf.seccomp_data(audit, nr, high)) == low


@pytest.mark.parametrize("arch", ARCHES)
def test_upper_half_matters_of_one_argument_only(arch: str) -> None:
    """A pointer that is null; one more would have to be argued for, line by line."""
    model = MODELS[arch]
    found = {
        (model.names[nr], arg) for nr in model.names for arg in seccomp_model.pointers(model, nr)
    }
    assert found == {("prlimit64", 2), ("prlimit64", 3)}


@pytest.mark.parametrize("arch", ARCHES)
def test_search_is_balanced(arch: str) -> None:
    code = bpf.unpack(PROGRAMS[arch])
    audit = seccomp.AUDIT_ARCH[arch]
    plain = [nr for nr, name in MODELS[arch].names.items() if not MODELS[arch].lines[name][0].tests]
    for nr in plain:
        path: list[int] = []
        bpf.evaluate(code, bpf.seccomp_data(audit, nr, ()), path)
        assert len(path) <= 20


@pytest.mark.parametrize("arch", ARCHES)
def test_plain_allow_reads_no_argument_so_the_kernel_may_cache_it(arch: str) -> None:
    code = bpf.unpack(PROGRAMS[arch])
    audit = seccomp.AUDIT_ARCH[arch]
    model = MODELS[arch]
    plain = [nr for nr, name in model.names.items() if not model.lines[name][0].tests]
    for nr in plain:
        path: list[int] = []
        bpf.evaluate(code, bpf.seccomp_data(audit, nr, ()), path)
        loads = {code[at].k for at in path if code[at].code == bpf.LOAD}
        assert loads == {bpf.OFFSET_ARCH, bpf.OFFSET_NR}


@pytest.mark.parametrize("arch", ARCHES)
def test_program_passes_the_kernels_own_checks(arch: str) -> None:
    code = bpf.unpack(PROGRAMS[arch])
    assert len(code) <= bpf.LONGEST_PROGRAM
    assert code[-1].code == bpf.RETURN
    assert bpf.pack(code) == PROGRAMS[arch]
    assert all(0 <= at < len(code) for _, at in _every_branch(code))


def test_interpreter_refuses_an_opcode_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="opcode 0x7"):
        bpf.evaluate([bpf.statement(0x07, 0)], b"\0" * 64)
