"""The code that runs inside every sandbox: init, contexts, files, commands.

It uses the standard library only, of Python 3.8 or newer, imports no module of cellwall outside
`guest`, and travels as a zipapp. Outside this package only `runtimes` imports it, for the frame
format that both ends share.
"""
