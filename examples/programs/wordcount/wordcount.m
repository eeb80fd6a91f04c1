text = fread(stdin, Inf, "char=>char")';
[words, ~, places] = unique(regexp(text, '\S+', "match"));
counts = accumarray(places(:), 1);
for i = 1:numel(words)
  printf("%s %d\n", words{i}, counts(i));
end
