1;

function taken = steps(n)
  if n == 1
    taken = 0;
  elseif mod(n, 2)
    taken = 1 + steps(3 * n + 1);
  else
    taken = 1 + steps(n / 2);
  end
end

for n = 1:30
  printf("%d %d\n", n, steps(n));
end
