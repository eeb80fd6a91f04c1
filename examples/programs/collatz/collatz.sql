COPY (
  WITH RECURSIVE walk(start, n) AS (
    SELECT s, s FROM range(1, 31) AS starts(s)
    UNION ALL
    SELECT start, CASE WHEN n % 2 = 1 THEN 3 * n + 1 ELSE n // 2 END FROM walk WHERE n <> 1
  )
  SELECT start, count(*) - 1 FROM walk GROUP BY start ORDER BY start
) TO '/dev/stdout' (HEADER false, DELIMITER ' ');
