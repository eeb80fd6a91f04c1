"""What integrations share: one sandbox for a conversation, answers for a model, errors."""
