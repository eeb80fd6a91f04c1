"""What the tests of integrations share: a stand-in for models, and environments of other suites."""
