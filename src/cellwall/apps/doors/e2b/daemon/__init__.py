"""The sandbox daemon of E2B: processes, terminals, files and watches of one sandbox."""
