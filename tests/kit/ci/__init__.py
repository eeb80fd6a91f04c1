"""What CI takes of the tests."""
