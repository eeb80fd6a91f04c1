declare -A counts
while read -ra words; do
    for word in "${words[@]}"; do
        counts[$word]=$((${counts[$word]:-0} + 1))
    done
done
for word in "${!counts[@]}"; do echo "$word ${counts[$word]}"; done | LC_ALL=C sort
