"""Packages for sandboxes without a network: the operator's registries, as pip, uv and npm ask them.

Runs in the outbound proxy's process, which has no privileges. `serving` speaks HTTP/1.1 with the
client inside, `broker` decides each answer, `pages` and `downloads` fetch from `upstream`, and
`cache` keeps files by their content. A sandbox has one policy (`model.packages`), which may change
between two requests. The invariant: a file reaches a sandbox only if its policy allows it now, and
only whole if its content is what the registry's page promised.
"""
