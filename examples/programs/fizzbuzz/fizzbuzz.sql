COPY (
  SELECT CASE
    WHEN n % 15 = 0 THEN 'FizzBuzz'
    WHEN n % 3 = 0 THEN 'Fizz'
    WHEN n % 5 = 0 THEN 'Buzz'
    ELSE n::VARCHAR
  END
  FROM range(1, 31) AS numbers(n)
  ORDER BY n
) TO '/dev/stdout' (HEADER false);
