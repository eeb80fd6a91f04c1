#!/bin/bash
[ "$(cat sorted.txt)" = $'a\nb' ] && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
