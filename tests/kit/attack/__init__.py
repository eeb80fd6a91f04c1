"""What the attack tests share beside the arena: guards left out, neighbours, users of the host."""
