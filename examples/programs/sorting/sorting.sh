quicksort() {
    (($#)) || return 0
    local pivot=$1 n smaller=() others=()
    shift
    for n; do
        if ((n < pivot)); then smaller+=("$n"); else others+=("$n"); fi
    done
    quicksort "${smaller[@]}"
    echo "$pivot"
    quicksort "${others[@]}"
}

mapfile -t numbers
quicksort "${numbers[@]}"
