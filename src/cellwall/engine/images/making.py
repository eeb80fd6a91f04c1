"""Making of an engine's store of images from the operator's settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cellwall.egress.addresses import AddressPolicy
from cellwall.engine.images.image_store import ImageStore
from cellwall.engine.images.own_templates import OwnTemplates
from cellwall.images.credentials import read_credentials
from cellwall.images.registry import Registries

if TYPE_CHECKING:
    from cellwall.engine.policy.settings import EngineSettings


def store_of(
    state_dir: Path,
    settings: EngineSettings,
    unpacker: Callable[[], Awaitable[object]],
    gives_up: Callable[[str], bool],
) -> ImageStore:
    """Return the store; `unpacker` and `gives_up` are those of `ImageStore`."""
    policy = AddressPolicy(settings.network_addresses)
    path = settings.image_credentials
    registries = replace(
        Registries.of(settings.image_registries),
        permits=lambda address: policy.is_public(address) or policy.is_listed(address),
        credentials=read_credentials(path) if path else {},
    )
    store = ImageStore(state_dir, registries, unpacker, most_bytes=settings.images_mb << 20)
    store.gives_up = gives_up
    own = OwnTemplates(state_dir)
    store.kept = own.images
    return store
