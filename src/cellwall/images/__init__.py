"""Images: what `image=` names, read from an archive, a registry or a Docker daemon.

Runs in the engine process, with the user's rights. Only documents are read here, with bounds; what
is in a layer is for `jail.unpack`, in a jail.
"""
