"""What a gateway decides together with others, over the directory."""
