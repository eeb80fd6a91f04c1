1;

function sorted = quicksort(numbers)
  if numel(numbers) < 2
    sorted = numbers;
    return;
  end
  pivot = numbers(1);
  rest = numbers(2:end);
  sorted = [quicksort(rest(rest < pivot)); pivot; quicksort(rest(rest >= pivot))];
end

printf("%d\n", quicksort(fscanf(stdin, "%d")));
