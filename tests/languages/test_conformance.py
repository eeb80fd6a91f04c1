"""Every language does what a language has to do, in a jail; four of them on Docker and gVisor too.

The tool of a language is a capability: missing, its tests are skipped here and fail in CI.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cellwall.embedded import Runner
from cellwall.engine.engine import Engine
from cellwall.engine.policy.settings import EngineSettings
from cellwall.engine.templates.store import TemplateStore, state_dir
from cellwall.languages.entries.language import Language
from cellwall.languages.registry import LANGUAGES
from cellwall.languages.tools import is_installed
from cellwall.model.errors import HostUnsupported
from cellwall.model.execution import Execution
from cellwall.model.outcome import Verdict
from cellwall.testing.bare import BareTemplates
from conftest import Require
from kit.languages.conformance import (
    BROKEN,
    CASES,
    ENDS,
    Witness,
    does,
    options,
    program,
    run_outside,
)

pytestmark = [pytest.mark.timeout(180)]

_EVERYWHERE = ("python", "javascript", "bash", "c")
_OTHERS = ("docker", "gvisor")
_CONTAINED = (  # one daemon, one image
    pytest.mark.root,
    pytest.mark.xdist_group("containers"),
    pytest.mark.again,
)
PLACES = [
    # SQL has no command and no process of its own: tests/contexts has its cases.
    *(
        pytest.param("jail", name, id=name, marks=[pytest.mark.again] * (name not in _EVERYWHERE))
        for name, each in LANGUAGES.items()
        if each.run
    ),
    *(
        pytest.param(runtime, name, id=f"{name}-{runtime}", marks=_CONTAINED)
        for runtime in _OTHERS
        for name in _EVERYWHERE
    ),
]
Run = Callable[..., Execution]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """One engine with a cache of its own, which is empty."""
    place = tmp_path_factory.mktemp("state")
    made = Runner(
        partial(
            Engine,
            place,
            EngineSettings(pool_max=0, pool_min=0),
            templates=TemplateStore(state_dir()),
        )
    )
    yield made
    made.close()


@pytest.fixture(scope="module")
def docker_runner(
    docker_daemon: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runner]:
    """One with an image that has the four languages in it."""
    place = tmp_path_factory.mktemp("containers")
    templates = BareTemplates(place / "env", languages=_EVERYWHERE)
    settings = EngineSettings(pool_max=0, pool_min=0)
    made = Runner(partial(Engine, place / "state", settings, templates=templates))
    yield made
    made.close()


@pytest.fixture
def language(request: pytest.FixtureRequest, require: Require) -> Language:
    found = LANGUAGES[request.param]
    require(found.name, is_installed(found), f"run: {found.install}")
    return found


@pytest.fixture
def run(request: pytest.FixtureRequest, require: Require) -> Run:
    """Do a one-shot on the runtime of the test."""
    runtime = request.param
    runner = request.getfixturevalue("docker_runner" if runtime == "docker" else "runner")
    choice = {"runtime": runtime, "isolation": "kernel" if runtime == "gvisor" else "namespace"}

    def do(code: str, language: Language, **options: Any) -> Execution:
        try:
            done: Execution = runner.call(
                lambda engine, _put: engine.run(code, language=language.name, **choice, **options)
            )
        except HostUnsupported as error:
            require(runtime, False, str(error))
            raise
        return done

    return do


everywhere = pytest.mark.parametrize(("run", "language"), PLACES, indirect=True)


@everywhere
def test_hello(run: Run, language: Language) -> None:
    execution = run(language.hello, language)
    assert (execution.stdout, execution.verdict) == ("hello\n", Verdict.OK), execution.stderr
    assert (execution.compilation is not None) == bool(language.compile)


_CASES = [pytest.param(name, marks=pytest.mark.cgroups if name == "bomb" else ()) for name in CASES]
"""Without cgroups some see their fork refused before we have counted as many processes."""


@everywhere
@pytest.mark.parametrize("name", _CASES)
def test_case(run: Run, language: Language, name: str) -> None:
    case = CASES[name]
    if not does(name, language):
        return
    given = options(name, language.name)
    execution = run(program(language), language, args=(name, *case.args), stdin=case.stdin, **given)
    about = f"{execution.stderr[-2000:]} {execution.outcome.notes}"
    expected = ENDS.get((name, language.name), case.verdict)
    assert execution.verdict is expected, about
    if name == "bomb":
        assert "processes and threads" in about
    if case.stdout is not None:
        assert execution.stdout == case.stdout, about
    if case.exit_code is not None:
        assert execution.exit_code == case.exit_code, about


@everywhere
def test_uncaught_error_is_typed(run: Run, language: Language) -> None:
    execution = run(language.failing.code, language)
    expected = language.failing
    about = execution.stderr[-2000:]
    if expected.error:
        assert execution.error is not None, about
        assert (execution.error.name, execution.error.line) == (expected.error, expected.line)
        assert execution.verdict in {Verdict.EXCEPTION, Verdict.SIGNALLED}, about
    else:
        assert (execution.verdict, execution.error) == (Verdict.SIGNALLED, None), about


@everywhere
def test_broken_source_ends_badly(run: Run, language: Language) -> None:
    execution = run(BROKEN.get(language.name, "(((\n"), language)
    assert execution.stdout == ""
    assert execution.stderr
    if language.compile:
        assert execution.verdict is Verdict.COMPILE_ERROR
        assert execution.error is not None
        assert execution.error.name == "CompileError"
    else:
        assert execution.verdict in {Verdict.EXCEPTION, Verdict.NONZERO_EXIT}


@everywhere
def test_network_is_denied(run: Run, language: Language, tmp_path: Path) -> None:
    if not does("connect", language):
        return
    witness = Witness()
    try:
        outside = run_outside(language, ["connect", str(witness.port)], tmp_path)
        assert (outside, witness.count()) == ("connected\n", 1)
        execution = run(program(language), language, args=("connect", str(witness.port)))
        assert execution.verdict in {Verdict.EXCEPTION, Verdict.NONZERO_EXIT}, execution.stderr
        assert execution.stdout == ""
        assert witness.count() == 0
    finally:
        witness.close()
