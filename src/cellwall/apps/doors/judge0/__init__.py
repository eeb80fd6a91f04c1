"""Judge0: submissions with tokens, alone and in batches, with a verdict on their output."""
