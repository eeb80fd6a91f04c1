const fs = require('fs');

function quicksort([pivot, ...rest]) {
  if (pivot === undefined) return [];
  const smaller = rest.filter((n) => n < pivot);
  const others = rest.filter((n) => n >= pivot);
  return [...quicksort(smaller), pivot, ...quicksort(others)];
}

const numbers = fs.readFileSync(0, 'utf8').trim().split(/\s+/).map(Number);
for (const n of quicksort(numbers)) console.log(n);
