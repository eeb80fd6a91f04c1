"""E2B: control plane, sandbox daemon and code interpreter, as its SDKs expect them."""
