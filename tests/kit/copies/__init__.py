"""What tests of copied sessions share."""
