"""The code interpreter of E2B: cells, their results and their contexts, in one sandbox."""
