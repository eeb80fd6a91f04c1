"""The host's books for a sandbox of one program, whose init only reaps (`fast.single_program`).

Runs in the engine process, and speaks the guest channel where an init of ours would.
"""
