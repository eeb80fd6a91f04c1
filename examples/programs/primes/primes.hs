primes :: [Int]
primes = sieve [2 ..] where sieve (p : rest) = p : sieve [n | n <- rest, n `mod` p /= 0]

main :: IO ()
main = mapM_ print (takeWhile (< 100) primes)
