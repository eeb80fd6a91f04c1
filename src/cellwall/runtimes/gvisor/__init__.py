"""gVisor sandboxes: `runsc` with an OCI bundle, and a keeper process for each sandbox.

The modules run in the engine process, except `keeper`, `work_area` (in the keeper), `boot` and
`module_finder` (in the sandbox), and `snapshot` (in a template's interpreter).
"""
