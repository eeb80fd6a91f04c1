"""What the tests of faults share: clocks that step, programs to be spoiled, and disks that fail."""
