"""Fleet: sandboxes on the machines of a Ray cluster; `from cellwall.fleet import Fleet`.

For one trust domain, such as a training job; tenants need servers. Ray itself is imported by
`Fleet.connect` alone: `pip install 'cellwall[ray]'`.
"""

from __future__ import annotations

from cellwall.fleet.driver.fleet import Fleet

__all__ = ["Fleet"]
