#!/bin/bash
{ id -un; pwd; echo "$HOME"; cat /etc/guarded 2> /dev/null || echo refused; } > who.txt
