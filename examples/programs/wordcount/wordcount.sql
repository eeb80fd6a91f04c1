COPY (
  WITH lines AS (
    SELECT line FROM read_csv('/dev/stdin', columns = {'line': 'VARCHAR'}, header = false, sep = '|')
  )
  SELECT word, count(*)
  FROM (SELECT unnest(regexp_extract_all(line, '\S+')) AS word FROM lines)
  GROUP BY word
  ORDER BY word
) TO '/dev/stdout' (HEADER false, DELIMITER ' ');
