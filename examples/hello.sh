echo "hello from Bash ${BASH_VERSION%%(*}"
for number in 1 2 3; do
    echo "$number squared is $((number * number))"
done
