#!/bin/bash
echo 2 > /srv/two.txt
