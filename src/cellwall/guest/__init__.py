"""What runs inside every sandbox: init, context loop, files, commands.

Standard library only, Python 3.8 or newer, imports nothing of ours; travels as a zipapp. Nobody
outside imports it but `runtimes`, for the frame format both ends share.
"""
