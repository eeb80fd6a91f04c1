#!/bin/bash
set -e
git apply /solution/mend.patch
git -c user.name=a -c user.email=a@b.test commit -qam "Divide by the number of values"
