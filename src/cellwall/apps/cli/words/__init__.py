"""The words of options that several commands have, or that need a reader of their own."""
