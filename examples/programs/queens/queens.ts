const size = 8;

function place(columns: readonly number[]): number {
  const row = columns.length;
  if (row === size) return 1;
  let count = 0;
  for (let column = 0; column < size; column++) {
    const isFree = columns.every((c, r) => c !== column && Math.abs(c - column) !== row - r);
    if (isFree) count += place([...columns, column]);
  }
  return count;
}

console.log(place([]));
