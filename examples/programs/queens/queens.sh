size=8
count=0

place() {
    local row=$1 column
    if ((row == size)); then
        count=$((count + 1))
        return
    fi
    for ((column = 0; column < size; column++)); do
        ((columns[column] || rising[row + column] || falling[row - column + size])) && continue
        columns[column]=1 rising[row + column]=1 falling[row - column + size]=1
        place $((row + 1))
        columns[column]=0 rising[row + column]=0 falling[row - column + size]=0
    done
}

place 0
echo "$count"
