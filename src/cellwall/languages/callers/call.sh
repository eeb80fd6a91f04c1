# Runs a script with its arguments as the file $CELLWALL_ARGUMENTS and, each text or number among
# them, as a variable of the same name; leaves what `main` prints or the variable `result`.
CELLWALL_RESULT=$PWD/$CELLWALL_RESULT
CELLWALL_ARGUMENTS=$PWD/$CELLWALL_ARGUMENTS
cellwall_file=$1
shift
. "./$cellwall_file"
if declare -F main >/dev/null; then
    main "$@" >"$CELLWALL_RESULT"
elif [ -n "${result+set}" ]; then
    printf '%s' "$result" >"$CELLWALL_RESULT"
fi
