#!/bin/bash
cat report.txt out/deep/two.txt && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
echo more > /logs/verifier/more.txt
