"""One server's HTTP as the SDK's parts need it: requests, retries, streams, what is under way."""
