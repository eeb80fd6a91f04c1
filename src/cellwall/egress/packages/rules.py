"""Whether a policy lets a release through, and why if it does not.

Pure functions of a policy, a release and the time. The invariant: the same question has the same
answer for a page, a file and its metadata, since all of them ask here.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from cellwall.egress.packages.listings import semver, sentences
from cellwall.egress.packages.listings.listing import Release
from cellwall.model.packages import PackagePolicy, PackageRule, Registry

_DAY_S = 86_400.0


class Judge:
    """What a policy says about one package; made for one request."""

    def __init__(self, policy: PackagePolicy, registry: Registry, name: str) -> None:
        """Take the rules that are about the package: lists may have thousands of others."""
        self._policy = policy
        self._is_on = registry in policy.registries
        self._deny = [rule for rule in policy.deny if rule.names(registry, name)]
        # SECURITY: the caller's list and the operator's; what is not on both is refused.
        self._lists = [
            [rule for rule in each if rule.names(registry, name)]
            for each in (policy.allow, policy.within)
            if each is not None
        ]

    def refusal_of_name(self) -> str | None:
        """Return why the policy refuses every release there may be; None: it may allow one."""
        if any(not rule.clauses for rule in self._deny):
            return sentences.DENIED
        return None if all(self._lists) else sentences.NOT_ALLOWED

    def refusal(self, release: Release, now: float) -> str | None:
        """Return why the policy refuses a release; None: it does not."""
        policy = self._policy
        if not self._is_on:
            return sentences.is_off(release.registry)
        if _match(self._deny, release):
            return sentences.DENIED
        if not all(_match(each, release) for each in self._lists):
            return sentences.NOT_ALLOWED
        if release.is_source and not policy.allow_sdists:
            return sentences.ONLY_SOURCE
        if release.size is not None and release.size > policy.largest_file_bytes:
            return sentences.too_large(policy.largest_file_mb)
        return _too_young(release, policy.min_age_days, now) if policy.min_age_days > 0 else None


def _too_young(release: Release, least_days: float, now: float) -> str | None:
    if release.uploaded_at is None:
        return sentences.of_unknown_age(least_days)
    is_young = now - release.uploaded_at < least_days * _DAY_S
    return sentences.too_young(least_days) if is_young else None


def _match(rules: Iterable[PackageRule], release: Release) -> bool:
    return any(_holds(rule, release) for rule in rules)


def _holds(rule: PackageRule, release: Release) -> bool:
    if release.registry == "npm":
        return all(semver.holds(*clause, release.version) for clause in rule.clauses)
    return not rule.clauses or _python_holds(rule.clauses, release.version)


@lru_cache(maxsize=65_536)
def _python_holds(clauses: tuple[tuple[str, str], ...], version: str) -> bool:
    # SECURITY: early versions count, or a denied one would pass as its own release candidate.
    wanted = SpecifierSet(",".join(map("".join, clauses)))
    return wanted.contains(Version(version), prereleases=True)
