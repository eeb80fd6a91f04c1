COPY (
  SELECT n
  FROM range(2, 100) AS numbers(n)
  WHERE NOT EXISTS (SELECT 1 FROM range(2, 10) AS divisors(d) WHERE d < n AND n % d = 0)
  ORDER BY n
) TO '/dev/stdout' (HEADER false);
