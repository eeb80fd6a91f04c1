hog() { local held=x; while :; do held=$held$held; done; }
bomb() { while :; do sleep 60 & done; }
flood() { for ((i = 0; i < 30000; i++)); do echo "a line of output, and a second half of it"; done; }
spin() { while :; do :; done; }
connect() { exec 3<>"/dev/tcp/127.0.0.1/$1" && echo connected; }

case $1 in
echo) cat ;;
words) shift; printf '%s\n' "$@" ;;
text) echo "grüße 你好 🙂" ;;
leave) exit 3 ;;
wait) while :; do sleep 1; done ;;
file) echo kept >note.txt; cat note.txt ;;
*) "$@" ;;
esac
