#!/bin/bash
set -e
groupadd -g 2000 web
useradd -u 2000 -g web -d /srv/pages -s /bin/bash web
chown -R web:web /srv/pages
install -m 4755 /bin/true /usr/local/bin/of-root
echo "a line of root's" >> /etc/motd
setsid -f python3 -m http.server --directory /srv/pages 80 > /tmp/server.log 2>&1
