"""The engine process's half of a Linux jail: fork-servers, their children, limits, the watchdog.

asyncio. What runs privileged is `cellwall.jail`; what a program meets is `cellwall.guest`.
"""
