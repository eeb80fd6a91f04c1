#!/bin/bash
[ "$(cat /srv/note.txt)" = 40 ] && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
