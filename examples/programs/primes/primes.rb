primes = (2...100).select { |n| (2..Integer.sqrt(n)).none? { |d| (n % d).zero? } }
puts primes
