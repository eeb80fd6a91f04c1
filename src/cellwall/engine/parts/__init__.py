"""The parts of a living sandbox: files, commands, terminals, ports, watches, contexts."""
