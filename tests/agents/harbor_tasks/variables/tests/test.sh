#!/bin/bash
echo build > /tmp/expected.txt
echo "of the image|a task's|task|default|solution|" >> /tmp/expected.txt
judge() {
    diff /tmp/expected.txt /srv/said.txt || return
    [ "$OF_VERIFIER|$OF_BOTH|$OF_SOLUTION|$OF_IMAGE" = "verifier|verifier||of the image" ]
}
judge && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
