#!/bin/bash
judge() {
    [ "$(cat /srv/said.txt)" = tool ] || return
    diff -r /tests/expected /srv/tree || return
    [ -x /srv/tree/deep/er/tool ] || return
    [ "$(cat '/srv/data/a b.txt' /srv/data/left.txt)" = $'spaces\nleft' ] || return
    [ ! -e /srv/data/key.secret ] || return
    [ "$(stat -c %u:%g /srv/owned/by.txt)" = 1001:1001 ]
}
judge && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
