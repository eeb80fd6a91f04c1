#!/bin/bash
[ ! -e /solution ] && diff /tests/expected.txt /srv/answer.txt && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
