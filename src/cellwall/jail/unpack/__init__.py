"""Unpacking of images: layers of strangers become the root of a sandbox, inside a jail."""
