"""What registries say about packages, and what pip, uv and npm are told in their place.

Pure functions of bytes, names and times; nothing here opens a file or a connection.
"""
