for ((n = 1; n <= 30; n++)); do
    if ((n % 15 == 0)); then echo FizzBuzz
    elif ((n % 3 == 0)); then echo Fizz
    elif ((n % 5 == 0)); then echo Buzz
    else echo "$n"; fi
done
