"""Commands and terminals that run for an owner: followed to their end, left, and gone on with."""
