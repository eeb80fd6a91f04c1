#!/bin/bash
page='import urllib.request; print(urllib.request.urlopen("http://127.0.0.1/", timeout=5).read().decode())'
judge() {
    for _ in $(seq 50); do python3 -c "$page" > /tmp/page 2> /dev/null && break; sleep 0.1; done
    grep -q "a page" /tmp/page || return
    [ "$(su web -c 'whoami; cat ~/index.html')" = $'web\n<p>a page</p>' ] || return
    [ "$(stat -c '%a %U' /usr/local/bin/of-root)" = "4755 root" ] || return
    tail -1 /etc/motd | grep -q "a line of root's"
}
judge && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
