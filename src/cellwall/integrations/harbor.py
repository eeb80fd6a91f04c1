"""An environment for Harbor, with root inside: `cellwall.integrations.harbor:CellwallEnvironment`.

Needs Python 3.12 and `harbor`; `pip install 'cellwall[harbor]'`. A task's image is the root of one
sandbox, with root inside: the one that `docker_image` names, or one built from its Dockerfile. The
invariant: what a task asks for and this machine cannot enforce ends its trial before it starts.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import cellwall
from cellwall.integrations.shared.extras import missing

try:
    from harbor.environments.base import BaseEnvironment, ExecResult
    from harbor.environments.capabilities import (
        EnvironmentCapabilities,
        EnvironmentResourceCapabilities,
    )
    from harbor.environments.definition import (
        require_agent_environment_definition,
        should_use_prebuilt_docker_image,
    )
    from harbor.environments.options import EnvironmentOptions
    from harbor.models.task.config import NetworkMode
    from pydantic import Field
except ModuleNotFoundError as error:
    raise missing("harbor", error) from None

if TYPE_CHECKING:
    from harbor.models.task.config import NetworkPolicy

_TIMED_OUT = 124
"""What timeout(1) of coreutils says, and what agents look for."""


class CellwallOptions(EnvironmentOptions):
    """What `--ek NAME=VALUE` takes; all have defaults."""

    isolation: str = "namespace"
    runtime: str | None = None
    user: str | None = None
    """User of commands for which neither Harbor nor the task names one; by default the image's."""
    build_network: list[str] | str | None = None
    """Network of a Dockerfile's steps, such as `["mirror.example.org"]`; by default none."""
    limits: dict[str, int | float] = Field(default_factory=dict)
    """Differences from `Limits.agent()` and from what the task says of its resources."""


class CellwallEnvironment(BaseEnvironment):
    """One sandbox of one trial."""

    options_model = CellwallOptions
    options: CellwallOptions
    _sandbox: cellwall.AsyncSandbox | None = None
    _user = "root"
    """User of commands for which none is named."""

    @staticmethod
    def type() -> str:
        """Return the name of this kind of environment."""
        return "cellwall"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """What is enforced: every kind of network policy, also while a trial runs."""
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            network_allowlist_ipv4_addresses=True,
            network_allowlist_ipv6_addresses=True,
            network_allowlist_ipv4_cidrs=True,
            network_allowlist_ipv6_cidrs=True,
            dynamic_network_policy=True,
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Return that CPUs and memory are limits; nothing is reserved."""
        return EnvironmentResourceCapabilities(
            cpu_limit=True, memory_limit=True, fractional_cpus=True
        )

    def _validate_definition(self) -> None:
        image = self.task_env_config.docker_image
        require_agent_environment_definition(self.environment_dir, docker_image=image)
        if not image and not self._dockerfile.is_file():
            raise cellwall.UsageError(
                f"task {self.environment_name}: it is made of several containers",
                remedy="use a task with a Dockerfile or a docker_image",
            )

    # -- life ------------------------------------------------------------------------------

    async def start(self, force_build: bool) -> None:
        """Build or find the image, and start a sandbox on it. Raises what a sandbox raises."""
        digest, user = await self._image(force_build)
        self._user = self.options.user or user or "root"
        self._sandbox = await cellwall.AsyncSandbox.create(
            image=digest,
            user="root",
            limits=self._limits(),
            env=self._startup_env(),
            isolation=self.options.isolation,
            runtime=self.options.runtime,
            network=_network(self.network_policy),
        )
        try:
            if self.task_env_config.workdir:
                await self._sandbox.files.mkdir(self.task_env_config.workdir)
            await self.ensure_dirs(self._mount_targets(writable_only=True))
            await self._upload_environment_dir_after_start()
        except BaseException:
            await self.stop(delete=True)
            raise

    async def stop(self, delete: bool) -> None:
        """Destroy the sandbox, also without `delete`: it lives no longer than this process."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.close()

    @property
    def _dockerfile(self) -> Path:
        return Path(self.environment_dir) / "Dockerfile"

    async def _image(self, force_build: bool) -> tuple[str, str]:
        """Return the id of the task's image, and the image's user."""
        image = self.task_env_config.docker_image
        is_here = should_use_prebuilt_docker_image(
            self.environment_dir, docker_image=image, force_build=force_build
        )
        if image and is_here:
            found = await asyncio.to_thread(cellwall.Images().build, cellwall.ImageSteps(image))
            return found.digest, found.config.user
        self.logger.info("building the image of %s", self.environment_name)
        built = await asyncio.to_thread(
            cellwall.Images().build,
            self._dockerfile,
            context=self.environment_dir,
            network=self.options.build_network,
        )
        return built.digest, built.config.user

    def _limits(self) -> cellwall.Limits:
        wanted = {
            "cpus": self._effective_cpus,
            "memory_mb": self._effective_memory_mb,
            "disk_mb": self._effective_storage_mb,
        }
        known = {name: value for name, value in wanted.items() if value is not None}
        return cellwall.Limits.agent(**{**known, **self.options.limits})

    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        await self._live.set_network(_network(network_policy))

    # -- commands and files ----------------------------------------------------------------

    @property
    def _live(self) -> cellwall.AsyncSandbox:
        if self._sandbox is None:
            raise cellwall.SandboxUnavailable(
                "the environment is not started", remedy="call start() first"
            )
        return self._sandbox

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a line of shell, in the task's working directory unless `cwd` says another."""
        whom = self._resolve_user(user)
        whom = self._user if whom is None else str(whom)
        emit = self._output_callback()
        result = await self._live.commands.run(
            command,
            cwd=cwd or self.task_env_config.workdir,
            env=self._merge_env(env),
            user=whom,
            timeout=timeout_sec,
        )
        if emit is not None:
            await emit(result.stdout, "stdout")
            await emit(result.stderr, "stderr")
        is_late = result.outcome.verdict is cellwall.Verdict.WALL_TIME
        notes = "" if result.ok or not result.outcome.notes else "; ".join(result.outcome.notes)
        return ExecResult(
            stdout=result.stdout,
            stderr=f"{result.stderr}[{notes}]\n" if notes else result.stderr,
            return_code=_TIMED_OUT if is_late else result.status,
        )

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file into the sandbox, with its directory."""
        await self._live.files.mkdir(str(PurePosixPath(target_path).parent))
        await self._live.files.upload(source_path, target_path)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy a directory's content into one of the sandbox."""
        await self._live.files.mkdir(target_dir)
        await self._live.files.upload_dir(source_dir, target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file from the sandbox."""
        target = Path(target_path)
        await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
        await self._live.files.download(source_path, target)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy a directory's content from the sandbox, over what is there; links are left out."""
        target = Path(target_dir)
        await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".cellwall-", dir=target.parent) as place:
            whole = Path(place) / "tree"
            await self._live.files.download_dir(source_dir, whole)
            await asyncio.to_thread(shutil.copytree, whole, target, dirs_exist_ok=True)


def _network(policy: NetworkPolicy) -> str | list[str] | None:
    """Return what `NetworkPolicy.of` of cellwall takes for a policy of Harbor's."""
    if policy.network_mode == NetworkMode.PUBLIC:
        return "open"
    return list(policy.allowed_hosts) if policy.network_mode == NetworkMode.ALLOWLIST else None
