queens :: Int -> [[Int]]
queens size = place size
  where
    place 0 = [[]]
    place row = [column : rest | rest <- place (row - 1), column <- [1 .. size], isFree column rest]
    isFree column rest = and [c /= column && abs (c - column) /= r | (r, c) <- zip [1 ..] rest]

main :: IO ()
main = print (length (queens 8))
