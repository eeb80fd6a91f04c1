#!/bin/bash
cd /testbed
cp /tests/hidden.py .
if pytest -q -p no:cacheprovider checks.py hidden.py; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
