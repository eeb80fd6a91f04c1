import sys
import urllib.request


def fetched(host):
    try:
        return urllib.request.urlopen(f"http://{host}/", timeout=10).read().decode().strip()
    except OSError:
        return "unreachable"


print(*map(fetched, sys.argv[1:]), sep="\n")
