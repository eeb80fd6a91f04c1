"""What the broker is handed as descriptors: the cache's folder, and a file of authorities.

The engine opens both: their paths may lead through what this process may not enter, and the file
may be closed to it. The invariant: what is wrong is a `UsageError` with the path that the operator
knows, and a remedy.
"""

from __future__ import annotations

import os
import ssl

from cellwall.egress.packages.cache import Cache
from cellwall.model.errors import UsageError

_MOST_BYTES = 16 * 1024 * 1024


def cache_of(folder_fd: int, *, most_bytes: int) -> Cache:
    """Return the cache in a folder, whose descriptor has to stay open. `UsageError`."""
    path = f"/proc/self/fd/{folder_fd}"
    try:
        return Cache(f"{path}/.", most_bytes=most_bytes)
    except (OSError, UsageError) as error:
        shown = os.readlink(path)
        why = error.message if isinstance(error, UsageError) else str(error)
        raise UsageError(
            f"packages: the folder {shown} cannot be used: {why.replace(path, shown)}",
            remedy="remove it; it is made again",
        ) from None


def tls_of(file_fd: int | None) -> ssl.SSLContext:
    """Return TLS that trusts the authorities in a PEM file. `UsageError`.

    None: those of this machine.
    """
    if file_fd is None:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    path = os.readlink(f"/proc/self/fd/{file_fd}")
    try:
        with open(file_fd, "rb", closefd=False) as file:
            # Certificates are ASCII, what stands between them may be anything.
            text = file.read(_MOST_BYTES).decode("ascii", errors="ignore")
        context.load_verify_locations(cadata=text)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise UsageError(
            f"package registries: the certificates in {path} cannot be read: {error}",
            remedy="correct SSL_CERT_FILE, or `cert` of pip's settings: it has to be a PEM file",
        ) from None
    return context
