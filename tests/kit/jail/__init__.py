"""What the jail's tests share: children, fresh interpreters, and a second reading of the policy."""
