COPY (
  SELECT n
  FROM read_csv('/dev/stdin', columns = {'n': 'BIGINT'}, header = false)
  ORDER BY n
) TO '/dev/stdout' (HEADER false);
