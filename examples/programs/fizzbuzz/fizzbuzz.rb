(1..30).each do |n|
  word = "#{'Fizz' if (n % 3).zero?}#{'Buzz' if (n % 5).zero?}"
  puts word.empty? ? n : word
end
