"""An image from a Dockerfile: stages, steps, and which of them were done before.

Each step that changes files runs in a sandbox of its own on the image that the steps before it have
made, as root inside, and becomes an image (`commit`). The invariants: a step's key holds all that
it depends on, so a step of the same key has the same result; a build that is cancelled or fails
leaves neither a sandbox nor a file, except finished steps.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cellwall.engine.images.build_context import Context, Packed
from cellwall.engine.images.commit import Committed, commit, config_document
from cellwall.engine.images.finished_steps import FinishedSteps
from cellwall.engine.images.image_store import StoredImage, built_name
from cellwall.engine.policy.levels import NO_FLOOR, Floor
from cellwall.images import dockerfile, here_documents, reference
from cellwall.images.dockerfile import Dockerfile, Instruction, Stage
from cellwall.images.image import (
    Image,
    ImageConfig,
    ImageInvalid,
    Layer,
    digest_of,
    machine_architecture,
    read_config,
)
from cellwall.model.errors import CellwallError, FileError, NotFound, UsageError
from cellwall.model.limits import Limits

if TYPE_CHECKING:
    from cellwall.engine.engine import Engine
    from cellwall.engine.sandbox import AsyncSandbox

_SHELL = ("/bin/sh", "-c")
_ROOT = frozenset({"", "0", "root"})
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar.zst")
_EMPTY_TAR = bytes(10_240)
_MOST_LAYERS = 100
"""Layers above which a step's image is made of one: the whole root."""
_LAST_OUTPUT = 2000
_STEPS_VERSION = 2
"""Changes when a step of the same words has another result."""
_NOT_AHEAD = frozenset({"RUN", "COPY", "ADD", "ENV"})
"""Instructions that change files, and those that a step on the image would notice."""
LIMITS = Limits(wall_s=1800, cpu_s=1800, memory_mb=2048, disk_mb=1024, inodes=200_000, file_mb=1024)
"""Limits of each step, unless the caller gives others."""


class BuildFailed(CellwallError):
    """A `RUN` failed; `line`, `exit_status` and `output` (its end) say how."""

    code = "build_failed"

    def __init__(self, instruction: Instruction, status: int, output: str) -> None:
        super().__init__(
            f"Dockerfile, line {instruction.line}: {instruction.name}: "
            f"it ended with {status}: {output[-400:].strip()}",
            remedy="read its output; without `network` a step has no network",
        )
        self.line, self.exit_status, self.output = instruction.line, status, output


@dataclass(frozen=True, slots=True)
class BuildEvent:
    """What a build tells while it works."""

    kind: Literal["step", "cached", "output", "done"]
    line: int
    """Line of the instruction."""
    text: str
    """The instruction, a piece of its output, or the image's id."""


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """What is built, and how."""

    source: bytes
    """The Dockerfile."""
    context: Path | None = None
    name: str | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    target: str | None = None
    """Name or number of the stage that is wanted; None: the last one."""
    network: object = None
    """What `NetworkPolicy.of` takes; None: no network."""
    limits: Limits = LIMITS
    on_event: Callable[[BuildEvent], None] | None = None
    tenant: str = ""
    """Whose it is. A step's result serves later builds of the same tenant alone: what a step
    fetched for one could be what another never asked for."""
    floor: Floor = NO_FLOOR
    """Isolation that the steps must have at least."""
    keeps_env: bool = True
    """Whether the image has what `ENV` says; otherwise it is of the steps of the last stage alone,
    and the image has the variables of the one that it is made of."""
    bring: Callable[[str], Awaitable[StoredImage]] | None = None
    """Brings what `FROM` and `COPY --from` name, if it is permitted; None: all that there is."""


@dataclass(slots=True)
class _State:
    """A stage on its way."""

    stored: StoredImage
    config: ImageConfig
    values: dict[str, str]
    """Values of `ARG`."""
    shell: tuple[str, ...] = _SHELL
    history: list[str] = field(default_factory=list)
    following: Sequence[Instruction] = ()
    """The instructions behind the one at hand."""
    unmade: list[tuple[str, str]] = field(default_factory=list)
    """Working directories of users other than root that no step has made, with their users."""

    def variables(self) -> dict[str, str]:
        return {**self.values, **self.config.environment}


async def build(engine: Engine, request: BuildRequest) -> StoredImage:
    """Build an image. Raises DockerfileInvalid, BuildFailed, and what a sandbox raises."""
    if request.name is not None:
        built_name(request.name)
    parsed = dockerfile.parse(request.source)
    context = None if request.context is None else await asyncio.to_thread(Context, request.context)
    with engine.images.workplace() as place:
        return await _Build(engine, request, parsed, context, place).whole()


class _Build:
    def __init__(
        self,
        engine: Engine,
        request: BuildRequest,
        parsed: Dockerfile,
        context: Context | None,
        place: Path,
    ) -> None:
        self._engine, self._store = engine, engine.images
        self._request, self._parsed, self._context = request, parsed, context
        self._place = place
        self._steps = FinishedSteps(engine.state_dir / "images" / "steps.json", self._store)
        self._stages: dict[int, StoredImage] = {}

    async def whole(self) -> StoredImage:
        """Build the stage that is wanted, and those that it needs."""
        stored = await self._stage(self._wanted())
        if self._request.name is not None:
            stored = self._store.name(stored, self._request.name)
        self._tell("done", 0, stored.digest)
        return stored

    def _wanted(self) -> int:
        target, stages = self._request.target, self._parsed.stages
        if target is None:
            return len(stages) - 1
        number = self._number(target, len(stages))
        if number is None:
            raise UsageError(
                f"build: there is no stage {target[:80]!r}",
                remedy="name one that the Dockerfile has: FROM … AS name",
            )
        return number

    def _number(self, name: str, before: int) -> int | None:
        """Return which stage before `before` has a name or number; None if none has."""
        for number in reversed(range(before)):
            if name.lower() == self._parsed.stages[number].name or name == str(number):
                return number
        return None

    async def _stage(self, number: int) -> StoredImage:
        if number in self._stages:
            return self._stages[number]
        stage = self._parsed.stages[number]
        stored = await self._base(stage, number)
        state = _State(stored, stored.config, {})
        for at, instruction in enumerate(stage.instructions):
            state.following = stage.instructions[at + 1 :]
            await self._instruction(state, instruction, number)
        if not self._request.keeps_env and number == self._wanted():
            state.config = replace(state.config, environment=stored.config.environment)
        last = stage.instructions[-1] if stage.instructions else stage.origin
        if state.unmade:
            await self._step(state, last, "", _nothing)
        if _described(state.config) != _described(state.stored.config):
            await self._step(state, last, "", None)
        self._stages[number] = state.stored
        return state.stored

    async def _base(self, stage: Stage, number: int) -> StoredImage:
        values = self._arguments(self._parsed.arguments)
        name = dockerfile.expand(stage.origin, stage.base, values)
        self._tell("step", stage.origin.line, f"FROM {name}")
        before = self._number(name, number)
        if before is not None:
            return await self._stage(before)
        if name == "scratch":
            return await self._empty()
        return await self._brought(name)

    async def _brought(self, name: str) -> StoredImage:
        if self._request.bring is not None:
            return await self._request.bring(name)
        meant = reference.parse(name)
        return await self._store.here(meant) or await self._store.bring(meant)

    async def _empty(self) -> StoredImage:
        path = self._place / "empty.tar"
        await asyncio.to_thread(path.write_bytes, _EMPTY_TAR)
        diff_id = digest_of(_EMPTY_TAR)
        plain = ImageConfig("", ())
        config = replace(
            plain, digest=digest_of(config_document(plain, [diff_id], [])), diff_ids=(diff_id,)
        )
        layer = Layer(diff_id, "none", path, 0, len(_EMPTY_TAR))
        return await self._store.add(Image(config, (layer,)))

    def _arguments(self, said: tuple[Instruction, ...]) -> dict[str, str]:
        platform = f"linux/{machine_architecture()}"
        values = {"TARGETPLATFORM": platform, "BUILDPLATFORM": platform, "TARGETOS": "linux"}
        values["TARGETARCH"] = machine_architecture()
        for each in said:
            values.update(self._argument(each, values))
        return values

    def _argument(self, instruction: Instruction, values: Mapping[str, str]) -> dict[str, str]:
        found = {}
        for word in dockerfile.split(instruction, instruction.text):
            name, equals, default = word.partition("=")
            given = self._request.arguments.get(name, values.get(name))
            if given is not None:
                found[name] = given
            elif equals:
                found[name] = dockerfile.expand(instruction, default, {**values, **found})
        return found

    # -- instructions ----------------------------------------------------------------------

    async def _instruction(self, state: _State, each: Instruction, number: int) -> None:
        state.history.append(str(each))
        if each.name == "RUN":
            await self._run(state, each)
        elif each.name in {"COPY", "ADD"}:
            await self._copy(state, each, number)
        else:
            self._declare(state, each)

    def _declare(self, state: _State, each: Instruction) -> None:
        """Take in an instruction that changes no file."""
        if each.name == "ARG":
            known = {**self._arguments(self._parsed.arguments), **state.variables()}
            state.values.update(self._argument(each, known))
        elif each.name == "SHELL":
            if not each.words:
                raise each.wrong("it is no list of words")
            state.shell = each.words
        elif each.name not in dockerfile.WITHOUT_EFFECT:
            state.config = _changed(state, each)
            if each.name == "WORKDIR" and state.config.user not in _ROOT:
                state.unmade.append((state.config.working_dir, state.config.user))

    async def _run(self, state: _State, each: Instruction) -> None:
        command = here_documents.in_shell(each.text, each.documents)
        argv = [*each.words] if each.words is not None else [*state.shell, command]
        bound = dockerfile.bound(each)
        out = self._place / f"bound-{each.line}.tar"
        packed = None
        if bound is not None:
            context = self._files(each)
            packed = await asyncio.to_thread(context.pack, each, [bound.source], bound.target, out)

        async def work(sandbox: AsyncSandbox) -> None:
            if bound is None or packed is None:
                await run(sandbox)
                return
            if await sandbox.files.exists(bound.target):
                raise each.wrong(f"--mount: {bound.target[:60]!r} is there", "name another target")
            await sandbox.files.put_tree(packed.folder, _pieces(out))
            await run(sandbox)
            await sandbox.files.remove(bound.target, recursive=True)

        async def run(sandbox: AsyncSandbox) -> None:
            said: list[str] = []

            def heard(text: str) -> None:
                said.append(text)
                self._tell("output", each.line, text)

            try:
                done = await sandbox.commands.run(
                    argv,
                    cwd=state.config.working_dir,
                    env=state.variables(),
                    user=state.config.user or None,
                    on_stdout=heard,
                    on_stderr=heard,
                )
            except (FileError, NotFound) as error:  # no such program, or no such user
                raise each.wrong(str(error), error.remedy or "") from None
            if not done.ok:
                raise BuildFailed(each, done.status, "".join(said)[-_LAST_OUTPUT:])

        depends = [argv, state.variables(), *([] if packed is None else [packed.digest])]
        await self._step(state, each, json.dumps(depends), work)

    async def _copy(self, state: _State, each: Instruction, number: int) -> None:
        words = list(each.words or dockerfile.split(each, each.text))
        if each.documents:
            words = [*_names(each, words[:-1]), words[-1]]
        words = [dockerfile.expand(each, word, state.variables()) for word in words]
        if len(words) < 2:
            raise each.wrong("it names no source and target")
        *sources, target = words
        whole = os.path.join(state.config.working_dir, target)
        if target in {".", "./"} or target.endswith("/."):
            whole = f"{whole.rstrip('.').rstrip('/')}/"
        if "from" in each.flags:
            await self._copy_between(state, each, (sources, whole), number)
            return
        if each.name == "ADD" and any("://" in word for word in sources):
            raise each.wrong("URLs are not added", "use COPY, or fetch it with RUN")
        context = self._files(each) if not each.documents else await self._written(state, each)
        is_archive = each.name == "ADD" and not each.documents
        if is_archive and any(word.endswith(_ARCHIVES) for word in sources):
            await self._add_archive(state, each, sources, whole)
            return
        out = self._place / f"copy-{each.line}.tar"
        packed = await asyncio.to_thread(context.pack, each, sources, whole, out)
        await self._put(state, each, packed, out)

    async def _written(self, state: _State, each: Instruction) -> Context:
        """Return a context with the here-documents that are copied, by their names."""
        folder = self._place / f"here-{each.line}"
        folder.mkdir()
        for document in each.documents:
            text, values = document.content, state.variables()
            if document.expands:
                text = dockerfile.expand(each, text, values, has_quotes=False)
            path = folder / document.name
            await asyncio.to_thread(path.write_text, text, "utf-8")
            path.chmod(0o644)
        return Context(folder)

    def _files(self, each: Instruction) -> Context:
        if self._context is None:
            raise each.wrong("there is no context", "name the directory with the files")
        return self._context

    async def _add_archive(
        self, state: _State, each: Instruction, sources: list[str], target: str
    ) -> None:
        """Unpack an archive to the root: it is a layer as it is."""
        if len(sources) != 1 or target != "/" or each.flags or not _is_layer(sources[0]):
            raise each.wrong(
                "an archive is unpacked to `/` alone, if it is a tar, uncompressed or with gzip",
                "use COPY, and unpack with RUN",
            )
        self._tell("step", each.line, str(each))
        out = self._place / f"add-{each.line}.tar"
        layer = await asyncio.to_thread(self._files(each).layer, each, sources[0], out)
        layers = (*state.stored.config.diff_ids, layer.diff_id)
        document = config_document(state.config, layers, tuple(state.history))
        try:
            state.stored = await self._store.add(Image(read_config(document), (layer,)))
        except ImageInvalid as error:
            raise each.wrong(error.message, error.remedy or "") from None

    async def _put(self, state: _State, each: Instruction, packed: Packed, out: Path) -> None:
        async def work(sandbox: AsyncSandbox) -> None:
            await sandbox.files.put_tree(packed.folder, _pieces(out))
            owner = each.flags.get("chown")
            if owner is not None:
                await self._chown(sandbox, each, owner, packed.folder)

        if "chown" in each.flags and packed.folder == "/":
            raise each.wrong("--chown needs a directory as its target", "copy to a directory")
        await self._step(state, each, f"{packed.folder} {packed.digest}", work)

    async def _chown(
        self, sandbox: AsyncSandbox, each: Instruction, owner: str, folder: str
    ) -> None:
        done = await sandbox.commands.run(["chown", "-R", "--", owner, folder])
        if not done.ok:
            raise BuildFailed(each, done.status, done.stderr)

    async def _copy_between(
        self, state: _State, each: Instruction, paths: tuple[list[str], str], number: int
    ) -> None:
        sources, whole = paths
        name = each.flags["from"]
        before = self._number(name, number)
        if before is None:
            other = await self._brought(name)
        else:
            other = await self._stage(before)

        async def work(sandbox: AsyncSandbox) -> None:
            async with self._sandbox(_State(other, other.config, {})) as origin:
                for source in sources:
                    path = os.path.join("/", source)
                    entry = await origin.files.stat(path)
                    is_folder = entry.type == "directory" or whole.endswith("/")
                    into = whole if is_folder else os.path.dirname(whole)
                    out = self._place / "between.tar"
                    await asyncio.to_thread(out.write_bytes, b"")
                    async for piece in origin.files.stream_dir(path):
                        await asyncio.to_thread(_append, out, piece)
                    await sandbox.files.put_tree(into, _pieces(out))
                    if not is_folder and os.path.basename(path) != os.path.basename(whole):
                        await sandbox.files.move(os.path.join(into, os.path.basename(path)), whole)
            owner = each.flags.get("chown")
            if owner is not None:
                await self._chown(sandbox, each, owner, whole)

        await self._step(state, each, other.digest, work)

    # -- steps -----------------------------------------------------------------------------

    async def _step(self, state: _State, each: Instruction, depends: str, work: Any) -> None:  # noqa: ANN401 - a coroutine function, or None
        """Do what changes files, unless it was done before; the state is the image after it."""
        self._tell("step", each.line, str(each))
        if work is None:
            state.stored = await self._configured(state)
            return
        key = hashlib.sha256(
            json.dumps(
                [
                    _STEPS_VERSION,
                    *(state.stored.digest, str(each), depends, repr(self._request.network)),
                    self._request.tenant,
                    _described(state.config),
                    *state.unmade,
                ]
            ).encode()
        ).hexdigest()
        stored = self._steps.find(key)
        if stored is not None:
            self._tell("cached", each.line, stored.digest)
        else:
            async with self._sandbox(state, shows_changes=True) as sandbox:
                for path, user in state.unmade:
                    await self._make(sandbox, each, path, user)
                await sandbox.files.mkdir(state.config.working_dir)
                await work(sandbox)
                how = Committed(None, tuple(state.history))
                config = replace(self._foreseen(state), diff_ids=state.stored.config.diff_ids)
                stored = await commit(self._store, self._place, sandbox, config, how)
            self._steps.keep(key, stored)
        state.stored = stored
        state.unmade.clear()

    async def _make(self, sandbox: AsyncSandbox, each: Instruction, path: str, user: str) -> None:
        """Make a working directory; what is missing of it is the user's, as in BuildKit."""
        way = [path[:at] for at in range(1, len(path)) if path[at] == "/"] + [path]
        missing = [above for above in way if not await sandbox.files.exists(above)]
        if not missing:
            return
        await sandbox.files.mkdir(path)
        owner = user if ":" in user or user.isdecimal() else f"{user}:"
        try:
            await self._chown(sandbox, each, owner, missing[0])
        except (FileError, NotFound):
            self._tell("output", each.line, f"{missing[0]} is root's: the image has no chown\n")

    async def _configured(self, state: _State) -> StoredImage:
        """Return the image with the files of another one, and with the state's configuration."""
        layers = state.stored.config.diff_ids
        document = config_document(state.config, layers, tuple(state.history))
        return await self._store.add(Image(read_config(document), ()))

    def _foreseen(self, state: _State) -> ImageConfig:
        """Return the configuration with what follows: another image for that alone is spared.

        A later build may find the image with words that its Dockerfile no longer has: steps go by
        `state.config`, and the last image is one that says just that.
        """
        ahead = replace(state, values=dict(state.values), history=[], unmade=[])
        for each in state.following:
            # A sandbox on the image would make a working directory, for root.
            is_unmade = each.name == "WORKDIR" and ahead.config.user not in _ROOT
            if is_unmade or each.name in _NOT_AHEAD:
                break
            self._declare(ahead, each)
        return ahead.config

    def _sandbox(self, state: _State, *, shows_changes: bool = False) -> _Lent:
        can_show = len(state.stored.config.diff_ids) < _MOST_LAYERS
        return _Lent(self._engine, self._request, state.stored, shows_changes and can_show)

    def _tell(
        self, kind: Literal["step", "cached", "output", "done"], line: int, text: str
    ) -> None:
        if self._request.on_event is not None:
            self._request.on_event(BuildEvent(kind, line, text))


class _Lent:
    """A sandbox as root on an image, for one step."""

    def __init__(
        self, engine: Engine, request: BuildRequest, stored: StoredImage, shows_changes: bool
    ) -> None:
        self._engine, self._request, self._stored = engine, request, stored
        self._shows_changes = shows_changes
        self._sandbox: AsyncSandbox | None = None

    async def __aenter__(self) -> AsyncSandbox:
        root = await self._engine.images.root(self._stored.digest, "root")
        try:
            runtime = await self._engine.runtime()
            shows = self._shows_changes and getattr(runtime, "shows_changes", False)
            # Under a floor it may be another runtime that serves.
            shows = shows and self._request.floor == NO_FLOOR
            self._sandbox = await self._engine.create_sandbox(
                limits=self._request.limits,
                image=replace(root, shows_changes=shows),
                network=self._request.network,
                floor=self._request.floor,
                tenant=self._request.tenant,
            )
        finally:
            self._engine.images.let_go(root.digest)
        return self._sandbox

    async def __aexit__(self, *_: object) -> None:
        if self._sandbox is not None:
            await self._sandbox.close()


def _described(config: ImageConfig) -> str:
    """Return what a configuration says, apart from layers and history."""
    return config_document(config, [], []).decode()


def _changed(state: _State, each: Instruction) -> ImageConfig:
    """Return the configuration after `ENV`, `LABEL`, `WORKDIR`, `USER`, `CMD`, `ENTRYPOINT`."""
    config, variables = state.config, state.variables()
    if each.name == "ENV":
        added = dockerfile.assignments(each, variables)
        return replace(config, environment={**config.environment, **added})
    if each.name == "LABEL":
        labels = {**config.labels, **dockerfile.assignments(each, variables)}
        return replace(config, labels=labels)
    if each.name == "WORKDIR":
        path = os.path.join(config.working_dir, dockerfile.expand(each, each.text, variables))
        return replace(config, working_dir=os.path.normpath(path))
    if each.name == "USER":
        return replace(config, user=dockerfile.expand(each, each.text, variables))
    words = each.words
    if words is None:
        words = (*state.shell, each.text) if each.text else ()
    if each.name == "CMD":
        return replace(config, command=words)
    return replace(config, entrypoint=words, command=())


async def _nothing(_: AsyncSandbox) -> None:
    """Do nothing."""


def _names(each: Instruction, words: list[str]) -> list[str]:
    """Return the names of the here-documents that an instruction copies."""
    if [document.word for document in each.documents] != words or "from" in each.flags:
        raise each.wrong("files and here-documents are not copied by one instruction")
    return [document.name for document in each.documents]


def _is_layer(name: str) -> bool:
    return name.endswith((".tar", ".tar.gz", ".tgz"))


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    with await asyncio.to_thread(path.open, "rb") as file:
        while piece := await asyncio.to_thread(file.read, 1 << 20):
            yield piece


def _append(path: Path, piece: bytes) -> None:
    with path.open("ab") as file:
        file.write(piece)
