"""Connect protocol and protobuf messages, pure: bytes in, values out."""
