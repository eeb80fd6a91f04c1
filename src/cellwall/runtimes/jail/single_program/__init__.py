"""The host's part for a sandbox of one program, whose init only reaps (`fast.single_program`).

Runs in the engine process, and gives the answers of the guest channel that a full init would give.
"""
