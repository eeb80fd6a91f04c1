#!/bin/bash
rm -f counter
make -s && [ "$(./counter)" = 42 ] && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
