# Runs Bash for a context: one request, one answer, state kept in between.
# Started by `interpreter.py` with the paths of two pipes. No pipe is open while caller code runs.
# Ours are `builtin`: a cell may have a function of any name.
__cellwall_requests=$1 __cellwall_answers=$2
shift 2

# An interrupt ends the cell, not the shell: from the trap on, every command of it "returns".
__cellwall_unwind() {
    ((${#FUNCNAME[@]} > 1)) && return 2
    return 0
}
__cellwall_interrupted() {
    __cellwall_was_interrupted=1
    builtin shopt -s extdebug
    builtin trap __cellwall_unwind DEBUG
}

# What $? was at the end of the cell before.
__cellwall_again() { return "$1"; }

builtin printf '{"ev":"ready"}\n' >"$__cellwall_answers"
while IFS=$'\t' builtin read -r __cellwall_kind __cellwall_source __cellwall_stdin __cellwall_rest \
    <"$__cellwall_requests"; do
    [[ $__cellwall_stdin == - ]] && __cellwall_stdin=/dev/null
    __cellwall_was_interrupted=
    builtin trap __cellwall_interrupted INT
    builtin printf '{"ev":"running"}\n' >"$__cellwall_answers"
    __cellwall_again "${__cellwall_status:-0}"
    builtin source "$__cellwall_source" <"$__cellwall_stdin"
    __cellwall_status=$?
    builtin trap - DEBUG
    builtin shopt -u extdebug
    builtin trap : INT
    __cellwall_raised=false
    if [[ $__cellwall_was_interrupted ]]; then
        __cellwall_raised=true __cellwall_status=130
        builtin printf 'interrupted\n' >&2
        builtin printf '{"ev":"error","name":"KeyboardInterrupt","value":"","traceback":"interrupted"}\n' \
            >"$__cellwall_answers"
    fi
    builtin printf '{"ev":"done","raised":%s,"status":%d}\n' "$__cellwall_raised" "$__cellwall_status" \
        >"$__cellwall_answers"
done
