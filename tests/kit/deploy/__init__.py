"""What the tests of a deployment share: a container engine, a unit's walls, and `systemctl`."""
