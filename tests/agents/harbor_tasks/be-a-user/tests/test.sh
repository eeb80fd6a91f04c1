#!/bin/bash
cd /home/app/work
printf 'app\n/home/app/work\n/home/app\nrefused\n' > /tmp/expected.txt
judge() {
    [ "$(id -u)" = 0 ] || return
    diff /tmp/expected.txt who.txt || return
    [ "$(stat -c %u who.txt)" = 1234 ] || return
    [ "$(cat built-by.txt)" = app ]
}
judge && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
