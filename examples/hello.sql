COPY (SELECT 'hello') TO '/dev/stdout' (HEADER false);
