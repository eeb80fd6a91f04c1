"""What the embedded library and the SDK have in common, apart from who does the work.

The synchronous face of asynchronous objects, callbacks, trees of files on their way in and out,
forwarded ports. Imports `model` and the standard library; knows neither engine nor HTTP.
"""
