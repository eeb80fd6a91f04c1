"""Parts that the embedded library and the SDK share, whichever of them does the work.

They are: the synchronous face of asynchronous objects, callbacks, trees of files on their way in
and out, forwarded ports. Imports `model` and the standard library; knows neither engine nor HTTP.
"""
