"""Images of registries, by the HTTP API of the OCI distribution specification 1.1 (`spec.md`).

Only registries that the operator lists are asked. The invariants: a blob is used only if it has the
digest by which its manifest names it; credentials and tokens go to the registry's own origin, or to
the token service that it names, and never along a redirect; a registry with a public address leads
to no other kind of address, but to those that the operator permits (`visits`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit, urlunsplit

from cellwall.images.image import (
    MOST_DOCUMENT_BYTES,
    MOST_LAYERS,
    Compression,
    Image,
    ImageInvalid,
    Layer,
    PullFailed,
    checked_digest,
    compression_of,
    digest_of,
    document,
    is_for_this_machine,
    is_index,
    machine_architecture,
    read_config,
)
from cellwall.images.reference import InRegistry
from cellwall.images.visits import Permits, Visits, is_public
from cellwall.model.errors import HostUnsupported, NotFound, UsageError

if TYPE_CHECKING:
    import httpx

OnBytes = Callable[[int, int], None]
"""Called with the number of bytes that have come, and of all that will come."""
_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_ACCEPTED = ", ".join((*_INDEXES, *_MANIFESTS))
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_DEFAULT = "docker.io"
_LIBRARY = "library/"
_TRIES = 3
_MOST_REDIRECTS = 4
_PARALLEL = 3
_TIMEOUT_S = 30.0
_MOST_PAUSE_S = 30.0
_BUSY = frozenset({429, 500, 502, 503, 504})
"""Answers after which the same request is made again."""


@dataclass(frozen=True, slots=True)
class Registries:
    """The registries of the operator."""

    urls: Mapping[str, str] = field(default_factory=dict, repr=False)
    """URL of the API by the name that images have, such as `{"docker.io": "https://…"}`; a URL may
    have a user and a password."""
    most_bytes: int = 20 << 30
    """Largest image, as it lies in the registry, in bytes."""
    timeout_s: float = 1800.0
    credentials: Mapping[str, tuple[str, str]] = field(default_factory=dict, repr=False)
    """User and password by the name of the registry, where its URL has none."""
    permits: Permits = field(default=is_public, repr=False)
    """Reports whether a redirect or a token service may lead to an address."""

    @classmethod
    def of(cls, listed: Iterable[Mapping[str, Any]]) -> Registries:
        """Return the registries of objects with `registry` and `url`. Raises `UsageError`."""
        urls = {}
        for each in listed:
            name, url = each.get("registry"), each.get("url")
            is_url = isinstance(url, str) and url.startswith(("https://", "http://"))
            if set(each) != {"registry", "url"} or not isinstance(name, str) or not is_url:
                raise UsageError(
                    "settings: image_registries: an entry is no object with registry and url",
                    remedy='write {"registry": "docker.io", "url": "https://mirror.example.org"}',
                )
            urls[name] = str(url)
        return cls(urls)

    def url_of(self, reference: InRegistry) -> str:
        """Return the URL to ask. Raises `UsageError` if the operator lists none."""
        name = reference.registry or _DEFAULT
        url = self.urls.get(name)
        if url is None:
            raise UsageError(
                f"image {reference}: the registry {name!r} is not one of this machine's operator",
                remedy="list it in CELLWALL_IMAGE_REGISTRIES, or save the image to an archive",
            )
        return url.rstrip("/")


class Pull:
    """One image on its way here."""

    def __init__(self, registries: Registries, reference: InRegistry, folder: Path) -> None:
        """`folder` is empty and gets the layers; its owner removes it."""
        self._registries = registries
        self._reference = reference
        self._folder = folder
        parts = urlsplit(registries.url_of(reference))
        self._basic = registries.credentials.get(reference.registry or _DEFAULT)
        if parts.username is not None:
            self._basic = (parts.username, parts.password or "")
        host = parts.netloc.rpartition("@")[2]
        repository = reference.repository
        if (reference.registry or _DEFAULT) == _DEFAULT and "/" not in repository:
            repository = _LIBRARY + repository
        self._repository = repository
        self._base = urlunsplit((parts.scheme, host, f"{parts.path}/v2/{repository}/", "", ""))
        self._token: str | None = None
        self._visits = Visits(parts.hostname or "", registries.permits)
        self._come = self._all = 0

    async def image(self, on_bytes: OnBytes | None = None) -> Image:
        """Return the image. Raises `PullFailed`, `ImageInvalid`, `NotFound`, `UsageError`."""
        httpx = _library()
        try:
            async with (
                asyncio.timeout(self._registries.timeout_s),
                httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as client,
            ):
                return await self._image(client, on_bytes or (lambda _come, _all: None))
        except TimeoutError:
            raise self._failed(f"it took more than {self._registries.timeout_s:g} s") from None
        except httpx.HTTPError as error:
            raise self._failed(str(error) or type(error).__name__) from error

    async def _image(self, client: httpx.AsyncClient, on_bytes: OnBytes) -> Image:
        wanted = self._reference.digest or self._reference.tag
        manifest = await self._document(client, f"manifests/{wanted}", self._reference.digest)
        if is_index(manifest, f"image {self._reference}"):
            chosen = self._chosen(manifest["manifests"])
            manifest = await self._document(client, f"manifests/{chosen}", chosen)
            if is_index(manifest, f"image {self._reference}"):
                raise ImageInvalid(f"image {self._reference}: its indexes lie too deep")
        config_digest = self._descriptor(manifest.get("config"))[0]
        config = read_config(await self._bytes(client, f"blobs/{config_digest}", config_digest))
        listed = manifest.get("layers")
        if not isinstance(listed, list) or len(listed) != len(config.diff_ids) > 0:
            raise ImageInvalid(f"image {self._reference}: its layers are not its configuration's")
        found = [self._descriptor(each) for each in listed]
        self._all = sum(size for _, size in found)
        if self._all > self._registries.most_bytes or len(found) > MOST_LAYERS:
            raise ImageInvalid(
                f"image {self._reference}: it has {self._all} bytes, above the operator's bound"
            )
        gate = asyncio.Semaphore(_PARALLEL)

        async def one(digest: str, size: int, diff_id: str) -> Layer:
            async with gate:
                path = await self._blob(client, digest, size, on_bytes)
            return Layer(diff_id, _compression(path), path, 0, size)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(one(digest, size, diff_id))
                    for (digest, size), diff_id in zip(found, config.diff_ids, strict=True)
                ]
        except ExceptionGroup as several:
            raise several.exceptions[0] from None  # the others were broken off for it
        return Image(config, tuple(task.result() for task in tasks))

    def _chosen(self, listed: object) -> str:
        fitting = [
            each
            for each in (listed if isinstance(listed, list) else [])
            if isinstance(each, dict) and is_for_this_machine(each.get("platform"))
        ]
        if not fitting:
            raise ImageInvalid(
                f"image {self._reference}: it has none for linux/{machine_architecture()}",
                remedy="use an image for this machine",
            )
        return self._descriptor(fitting[0])[0]

    def _descriptor(self, value: object) -> tuple[str, int]:
        what = f"image {self._reference}"
        if not isinstance(value, dict) or not isinstance(value.get("size"), int):
            raise ImageInvalid(f"{what}: a descriptor is missing")
        return checked_digest(value.get("digest"), what), max(0, int(value["size"]))

    async def _document(self, client: httpx.AsyncClient, path: str, digest: str) -> dict[str, Any]:
        data = await self._bytes(client, path, digest)
        return document(data, f"image {self._reference}, {path}")

    async def _bytes(self, client: httpx.AsyncClient, path: str, digest: str) -> bytes:
        async with self._asked(client, path) as answer:
            data = await self._whole(answer, path)
        if digest and digest_of(data) != digest:
            raise ImageInvalid(f"image {self._reference}, {path}: it has another digest")
        return data

    async def _whole(self, answer: httpx.Response, path: str) -> bytes:
        data = b""
        async for piece in answer.aiter_bytes():
            data += piece
            if len(data) > MOST_DOCUMENT_BYTES:
                raise ImageInvalid(f"image {self._reference}, {path}: it is too large")
        return data

    async def _blob(
        self, client: httpx.AsyncClient, digest: str, size: int, on_bytes: OnBytes
    ) -> Path:
        """Bring a blob here; continue after a broken transfer, and begin anew after a wrong one."""
        httpx = _library()
        part = _Part(self._folder / digest.removeprefix("sha256:"), size)
        for tries_left in reversed(range(_TRIES)):
            try:
                await self._continue(client, digest, part, on_bytes)
                if part.is_whole(digest):
                    return part.path
                raise ImageInvalid(f"image {self._reference}: blob {digest} has another digest")
            except ImageInvalid:
                self._come -= part.begin_anew()
                if not tries_left:
                    raise
            except httpx.TransportError:
                if not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _continue(
        self, client: httpx.AsyncClient, digest: str, part: _Part, on_bytes: OnBytes
    ) -> None:
        async with self._asked(client, f"blobs/{digest}", part.come) as answer:
            if not _continues(answer, part.come):
                self._come -= part.begin_anew()
            async for piece in answer.aiter_raw():
                self._come += len(piece)
                await asyncio.to_thread(part.add, piece)
                if part.come > part.size:
                    return
                on_bytes(self._come, self._all)

    @contextlib.asynccontextmanager
    async def _asked(
        self, client: httpx.AsyncClient, path: str, after: int = 0
    ) -> AsyncIterator[httpx.Response]:
        """Yield the answer to a request, redirects followed, with its content still to come.

        `after`: the bytes before that are here.
        """
        url = urljoin(self._base, path)
        way = _Way()
        while True:
            answer = await self._sent(client, url, after)
            try:
                if answer.status_code == 401 and self._is_own(url) and way.may_authorize():
                    await self._authorize(client, answer.headers.get("www-authenticate", ""))
                elif answer.is_redirect and way.may_follow():
                    url = self._checked(urljoin(url, answer.headers["location"]))
                elif answer.status_code in _BUSY and way.may_try_again():
                    await asyncio.sleep(way.pause_s(answer.headers.get("retry-after", "")))
                    url = urljoin(self._base, path)  # where it led to may have expired
                else:
                    self._check(answer, path, after)
                    yield answer
                    return
            finally:
                await answer.aclose()

    async def _sent(self, client: httpx.AsyncClient, url: str, after: int) -> httpx.Response:
        headers = self._headers(url)
        if after:
            headers["Range"] = f"bytes={after}-"
        return await self._send(client, url, headers=headers)

    async def _send(self, client: httpx.AsyncClient, url: str, **options: Any) -> httpx.Response:  # noqa: ANN401 - of a request
        """Ask for a URL at an address that was checked, so that no second answer of DNS counts."""
        auth = options.pop("auth", None)
        request = client.build_request("GET", url, **options)
        if not self._is_own(url):
            address = await self._visits.address_of(urlsplit(url))
            if address is None:
                raise self._failed(
                    "it leads to an address that is not public",
                    "list that network in network_addresses, if it is meant",
                )
            request.extensions["sni_hostname"] = request.url.host
            request.url = request.url.copy_with(host=address)  # the Host header stays
        return await client.send(request, stream=True, auth=auth)

    def _is_own(self, url: str) -> bool:
        mine, other = urlsplit(self._base), urlsplit(url)
        return (mine.scheme, mine.netloc) == (other.scheme, other.netloc)

    def _headers(self, url: str) -> dict[str, str]:
        headers = {"Accept": _ACCEPTED, "Accept-Encoding": "identity"}
        if self._is_own(url) and self._token is not None:
            headers["Authorization"] = self._token
        return headers

    def _checked(self, url: str) -> str:
        """Return where a redirect leads: over TLS, unless the registry itself has none."""
        scheme = urlsplit(url).scheme
        if scheme != "https" and scheme != urlsplit(self._base).scheme:
            raise self._failed("it redirects to an address without TLS")
        return url

    async def _authorize(self, client: httpx.AsyncClient, challenge: str) -> None:
        """Get what the registry asks for. Distribution specification, "Token authentication"."""
        httpx = _library()
        kind, _, rest = challenge.partition(" ")
        basic = httpx.BasicAuth(*self._basic) if self._basic else None
        if kind.lower() == "basic" and basic is not None:
            probe = next(basic.auth_flow(httpx.Request("GET", self._base)))
            self._token = probe.headers["Authorization"]
            return
        asked = dict(_CHALLENGE.findall(rest))
        if kind.lower() != "bearer" or "realm" not in asked:
            raise self._failed("it asks for credentials", "give them in the registry's URL")
        realm = self._checked(urljoin(self._base, asked["realm"]))
        scope = f"repository:{self._repository}:pull"
        wanted = {"service": asked.get("service", ""), "scope": scope}
        answer = await self._send(client, realm, params=wanted, auth=basic)
        try:
            self._check(answer, "token")
            said = await self._whole(answer, "token")
        finally:
            await answer.aclose()
        found = document(said, f"image {self._reference}, token")
        token = found.get("token") or found.get("access_token")
        if not isinstance(token, str) or not token.isascii():
            raise self._failed("its token service gave no token")
        self._token = f"Bearer {token}"

    def _check(self, answer: httpx.Response, path: str, after: int = 0) -> None:
        if answer.status_code == 200 or (after and answer.status_code == 206):
            return
        if answer.is_redirect or answer.status_code == 401:
            raise self._failed("it redirects without end, or asks for credentials again")
        if answer.status_code == 404:
            raise NotFound(
                f"image {self._reference}: the registry has none of that name",
                remedy="check the name and the tag",
            )
        remedy = None
        if answer.status_code in {401, 403}:
            remedy = "check the credentials in the registry's URL"
        raise self._failed(f"{path[:60]}: status {answer.status_code}", remedy)

    def _failed(self, why: str, remedy: str | None = None) -> PullFailed:
        return PullFailed(f"image {self._reference}: pull it: {why[:300]}", remedy=remedy)


@dataclass(slots=True)
class _Way:
    """What one request has met on its way, each bounded."""

    redirects: int = 0
    authorized: int = 0
    tries: int = 0

    def may_authorize(self) -> bool:
        """Report whether a token may be asked for: it may also have expired meanwhile."""
        self.authorized += 1
        return self.authorized == 1

    def may_follow(self) -> bool:
        self.redirects += 1
        return self.redirects <= _MOST_REDIRECTS

    def may_try_again(self) -> bool:
        self.tries += 1
        self.redirects = 0
        return self.tries < _TRIES

    def pause_s(self, retry_after: str) -> float:
        """Return how long the registry wants us to wait, at most half a minute."""
        named = float(retry_after) if retry_after.isdecimal() else 2.0 ** (self.tries - 1)
        return min(named, _MOST_PAUSE_S)


class _Part:
    """The part of a blob that is here."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        self.come = 0
        self._found = hashlib.sha256()

    def add(self, piece: bytes) -> None:
        """Append bytes to the file; what is above the size is counted alone."""
        if self.come + len(piece) <= self.size:
            with self.path.open("ab" if self.come else "wb") as file:
                file.write(piece)
            self._found.update(piece)
        self.come += len(piece)

    def is_whole(self, digest: str) -> bool:
        if not self.size:
            self.path.touch()
        return self.come == self.size and f"sha256:{self._found.hexdigest()}" == digest

    def begin_anew(self) -> int:
        """Forget the part; return how many bytes it had."""
        come, self.come, self._found = self.come, 0, hashlib.sha256()
        return come


def _continues(answer: httpx.Response, after: int) -> bool:
    """Report whether an answer begins where the part that is here ends."""
    if answer.status_code != 206:
        return after == 0
    return bool(answer.headers.get("content-range", "").startswith(f"bytes {after}-"))


def _compression(path: Path) -> Compression:
    with path.open("rb") as file:
        return compression_of(file.read(4))


def _library() -> Any:  # noqa: ANN401 - a module that only an extra brings
    try:
        import httpx
    except ImportError as error:
        raise HostUnsupported(
            "images", "image: pull it: httpx is missing", remedy="pip install 'cellwall[client]'"
        ) from error
    return httpx
