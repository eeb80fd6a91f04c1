def quicksort(numbers)
  pivot, *rest = numbers
  return [] if pivot.nil?

  smaller, others = rest.partition { |n| n < pivot }
  [*quicksort(smaller), pivot, *quicksort(others)]
end

puts quicksort($stdin.map(&:to_i))
