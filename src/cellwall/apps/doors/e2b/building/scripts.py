"""Programs that steps of a build run inside the sandbox of the step, for /bin/sh.

What a client said comes as arguments, never as text of a program. They run as root of that sandbox,
on what may be hostile: an archive is unpacked by the image's own tar, inside.
"""

PLACE = "/.e2b-build"
"""Where a step finds an uploaded archive, as `files.tar`; nothing is left of it."""

USER = r"""
set -eu
name=$1
next=1000
if [ -e /etc/passwd ]; then
    while IFS=: read -r word _; do
        if [ "$word" = "$name" ]; then exit 0; fi
    done </etc/passwd
fi
is_taken() {
    for file in /etc/passwd /etc/group; do
        [ -e "$file" ] || continue
        while IFS=: read -r _ _ id _; do
            if [ "$id" = "$1" ]; then return 0; fi
        done <"$file"
    done
    return 1
}
while is_taken "$next"; do next=$((next + 1)); done
printf '%s:x:%s:%s::/home/%s:/bin/bash\n' "$name" "$next" "$next" "$name" >>/etc/passwd
printf '%s:x:%s:\n' "$name" "$next" >>/etc/group
if [ -e /etc/shadow ]; then printf '%s:!:19000:0:99999:7:::\n' "$name" >>/etc/shadow; fi
if [ ! -e "/home/$name" ]; then
    mkdir -p "/home/$name"
    if [ -d /etc/skel ]; then cp -R /etc/skel/. "/home/$name"; fi
    chown -R "$next:$next" "/home/$name"
fi
"""
"""Make the user `$1` with a home, unless there is one of that name."""

WORKDIR = r"""
set -eu
path=$1 owner=$2
case $path in /*) ;; *) path=$PWD/$path ;; esac
made=
rest=${path#/}/
while [ -n "$rest" ]; do
    made=$made/${rest%%/*}
    rest=${rest#*/}
    if [ ! -d "$made" ]; then
        mkdir "$made"
        chown "$owner" "$made"
    fi
done
"""
"""Make the directory `$1`; what is missing of it belongs to `$2`."""

COPY = r"""
set -eu
source=$1 target=$2 owner=$3 mode=$4 place=$5
is_folder=
case $target in */ | . | */.) is_folder=1 ;; esac
case $target in /*) ;; *) target=$PWD/$target ;; esac
stage=$place/stage
mkdir "$stage"
tar -xof "$place/files.tar" -C "$stage"
from=$stage
is_pattern=
rest=$source/
while [ -n "$rest" ]; do
    part=${rest%%/*}
    rest=${rest#*/}
    case $part in
        '' | .) continue ;;
        *'*'* | *'?'* | *'['* | *'{'* | *'!('* | *'+('* | *'@('*)
            if [ ! -e "$from/$part" ]; then is_pattern=1; break; fi ;;
    esac
    from=$from/$part
done
if [ ! -e "$from" ] && [ ! -L "$from" ]; then
    echo "the uploaded files have no '$source'" >&2
    exit 1
fi
chown -hR "$owner" "$stage"
if [ -n "$mode" ]; then chmod -R "$mode" "$stage"; fi
made() {
    way=${1#/}/ place=
    while [ -n "$way" ]; do
        place=$place/${way%%/*}
        way=${way#*/}
        if [ ! -d "$place" ]; then mkdir "$place"; chown "$owner" "$place"; fi
    done
}
if [ -n "$is_pattern" ] || { [ -d "$from" ] && [ ! -L "$from" ]; }; then
    made "$target"
    for each in "$from"/* "$from"/.*; do
        case ${each##*/} in . | ..) continue ;; esac
        if [ -e "$each" ] || [ -L "$each" ]; then cp -a "$each" "$target/"; fi
    done
elif [ -n "$is_folder" ] || [ -d "$target" ]; then
    made "$target"
    cp -a "$from" "$target/"
else
    made "${target%/*}"
    cp -a "$from" "$target"
fi
"""
"""Copy `$1` of the archive in `$5` to `$2`, for the user `$3`, with the mode `$4` if there is one.

A directory gives what is in it, and so does a pattern, below its part without wildcards.
"""
