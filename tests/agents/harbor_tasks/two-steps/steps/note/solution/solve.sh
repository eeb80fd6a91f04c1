#!/bin/bash
echo 40 > note.txt
