#!/bin/bash
[ "$(cat answer.txt)" = 42 ] && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
