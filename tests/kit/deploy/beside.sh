#!/bin/bash
# Boots a systemd of its own beside this machine's: a root that lies over ours, namespaces, and a
# cgroup of the v2 hierarchy as its whole tree. Run by `tests/deploy/test_restart.py`, as root, in
# the namespaces of `unshare -m -p -u -i -C`.
#
#     beside.sh FOLDER [DIRECTORY...]
#
# FOLDER/upper is laid over our root; the directories are shown as they are here. The network is ours.
set -euo pipefail

folder=$1
root=$folder/root
mkdir -p "$root" "$folder/work"
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
for place in dev run tmp; do mount -t tmpfs -o mode=755 tmpfs "$root/$place"; done
chmod 1777 "$root/tmp"
for name in null zero full random urandom tty; do
    touch "$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
mount -t tmpfs tmpfs "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
touch "$root/dev/console"
mount --bind /dev/null "$root/dev/console"
for directory in "${@:2}"; do
    mkdir -p "$root$directory"
    mount --bind "$directory" "$root$directory"
done
# Not chroot: a process in one cannot make user namespaces.
mkdir -p "$root/before"
cd "$root"
pivot_root . before
umount -l /before
exec env -i container=beside PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --unit=beside.target --log-target=kmsg --show-status=0
