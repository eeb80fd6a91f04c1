"""The engine process's half of a Linux jail: fork-servers, their children, limits, the watchdog.

Runs on asyncio. The privileged part is `cellwall.jail`; what runs beside a program is
`cellwall.guest`.
"""
