"""What tests of several folders share: servers, engines, witnesses, stand-ins for other programs.

Not tests, and nothing of the product. A folder in here has what one kind of tests needs.
"""
