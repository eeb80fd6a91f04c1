"""What the tests of languages share: the conformance programs, and what each context is told."""
