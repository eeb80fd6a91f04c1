#!/bin/bash
tool > /srv/said.txt
echo "$OF_IMAGE|$OF_TASK|$OF_BOTH|$OF_HOST|$OF_SOLUTION|$OF_VERIFIER" >> /srv/said.txt
