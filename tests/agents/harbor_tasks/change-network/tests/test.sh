#!/bin/bash
printf 'unreachable\nunreachable\nunreachable\n' > /tmp/expected.txt
printf 'outside\noutside\nunreachable\n' > /tmp/now-expected.txt
python3 /opt/fetch.py files.test a.wild.test other.test > /tmp/now.txt
diff /tmp/expected.txt /srv/said.txt && diff /tmp/now-expected.txt /tmp/now.txt && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
