const text: string = "hello";
console.log(text);
