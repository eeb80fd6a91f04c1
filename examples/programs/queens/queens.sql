COPY (
  WITH RECURSIVE boards(columns) AS (
    SELECT []::BIGINT[]
    UNION ALL
    SELECT list_append(columns, c)
    FROM boards, range(8) AS choices(c)
    WHERE len(columns) < 8
      AND NOT list_contains(columns, c)
      AND len([r FOR r IN range(1, len(columns) + 1)
               IF abs(columns[r] - c) = len(columns) + 1 - r]) = 0
  )
  SELECT count(*) FROM boards WHERE len(columns) = 8
) TO '/dev/stdout' (HEADER false);
