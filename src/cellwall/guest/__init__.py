"""The code that runs inside every sandbox: init, contexts, files, commands.

Standard library only, Python 3.8 or newer, no import from cellwall outside `guest`; travels as a
zipapp. In the engine process only `runtimes` imports it, for the frame format that both ends share.
"""
