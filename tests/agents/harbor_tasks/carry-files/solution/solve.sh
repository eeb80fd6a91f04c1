#!/bin/bash
set -e
mkdir -p /srv
cp -a /solution/tree /srv/
/srv/tree/deep/er/tool > /srv/said.txt
