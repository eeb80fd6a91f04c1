$stdin.read.split.tally.sort.each { |word, count| puts "#{word} #{count}" }
