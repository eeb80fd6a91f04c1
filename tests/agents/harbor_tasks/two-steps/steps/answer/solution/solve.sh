#!/bin/bash
echo $(($(cat note.txt) + $(cat two.txt))) > answer.txt
