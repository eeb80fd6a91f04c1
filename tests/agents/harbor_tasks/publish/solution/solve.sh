#!/bin/bash
set -e
echo report > report.txt
mkdir -p out/deep
echo one > out/one.txt
echo two > out/deep/two.txt
echo three > out/three.tmp
head -c 3000000 /dev/zero > out/large.bin
echo published > /logs/artifacts/published.txt
