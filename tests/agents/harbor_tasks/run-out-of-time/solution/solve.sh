#!/bin/bash
echo 42 > answer.txt
echo written
sleep 3600
echo 43 > answer.txt
