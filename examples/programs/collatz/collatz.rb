def steps(n)
  return 0 if n == 1

  1 + steps(n.odd? ? 3 * n + 1 : n / 2)
end

(1..30).each { |n| puts "#{n} #{steps(n)}" }
