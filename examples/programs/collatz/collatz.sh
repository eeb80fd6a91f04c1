steps() {
    local n=$1 taken=$2
    if ((n == 1)); then
        echo "$taken"
    else
        steps $((n % 2 ? 3 * n + 1 : n / 2)) $((taken + 1))
    fi
}

for n in {1..30}; do echo "$n $(steps "$n" 0)"; done
