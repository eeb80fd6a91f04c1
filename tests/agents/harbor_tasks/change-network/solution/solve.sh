#!/bin/bash
python3 /opt/fetch.py files.test a.wild.test other.test > /srv/said.txt
