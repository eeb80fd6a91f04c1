import { readFileSync } from 'node:fs';

function merged(left: number[], right: number[]): number[] {
  const all: number[] = [];
  let l = 0, r = 0;
  while (l < left.length || r < right.length) {
    all.push(r === right.length || left[l] <= right[r] ? left[l++] : right[r++]);
  }
  return all;
}

function mergesort(numbers: number[]): number[] {
  if (numbers.length < 2) return numbers;
  const middle = numbers.length >> 1;
  return merged(mergesort(numbers.slice(0, middle)), mergesort(numbers.slice(middle)));
}

const numbers = readFileSync(0, 'utf8').trim().split(/\s+/).map(Number);
for (const n of mergesort(numbers)) console.log(n);
