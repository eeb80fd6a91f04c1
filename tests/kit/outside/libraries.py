"""Programs by which Python's libraries of HTTP get `URL` with `HEADERS`, and print the answer."""

from __future__ import annotations

PROGRAMS = {
    "requests": """
import requests
answer = requests.get(URL, headers=HEADERS)
answer.raise_for_status()
print(answer.text)
""",
    "httpx": """
import httpx
print(httpx.get(URL, headers=HEADERS).raise_for_status().text)
""",
    "aiohttp": """
import aiohttp, asyncio
async def main():
    async with aiohttp.ClientSession(headers=HEADERS) as session, session.get(URL) as answer:
        answer.raise_for_status()
        print(await answer.text())
asyncio.run(main())
""",
}
"""Of the template `data`, which has them all."""
