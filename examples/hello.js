const squares = [1, 2, 3].map((number) => number * number);
console.log("hello from JavaScript", process.version, squares);
